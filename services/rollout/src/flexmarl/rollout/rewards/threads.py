"""Runs a user's blocking function beside the event loop without ever having to wait for it.

The threads are daemons, so that a function that sleeps for an hour stops neither the worker nor
its shutdown (those of concurrent.futures are joined at exit). A function that outlives its timeout
keeps its thread; another takes its place, up to a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from flexmarl.rollout.border import ExitError, OverdueError, waiting

ResultT = TypeVar("ResultT")
_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]

THREADS = 8
SPARE_THREADS = 56


class DaemonThreads:
    """At most `threads` functions at a time, and `spare` more that are overdue."""

    def __init__(self, name: str, threads: int = THREADS, spare: int = SPARE_THREADS) -> None:
        self._name = name
        self._slots = asyncio.Semaphore(threads)
        self._spare = spare
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._idle = 0
        self._started = 0

    async def run(self, function: Callable[[], ResultT], seconds: float) -> ResultT:
        """What `function` returns or raises; OverdueError after `seconds` of running.

        Waiting for a thread is not part of them, nor of the time of the code that asks, while
        threads are merely busy; once all spare ones are overdue it is.
        """
        if self._spare:
            with waiting():
                await self._slots.acquire()
        else:
            async with _limited(seconds):
                await self._slots.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ResultT] = loop.create_future()
        self._submit((function, loop, future))
        try:
            async with _limited(seconds):
                return await asyncio.shield(future)
        finally:
            if future.done():
                self._slots.release()
            else:
                self._lend_slot(future)

    def _lend_slot(self, overdue: asyncio.Future[Any]) -> None:
        """The next function takes the place of an overdue one while there are spare threads."""
        lent = self._spare > 0
        if lent:
            self._spare -= 1
            self._slots.release()

        def ended(future: asyncio.Future[Any]) -> None:
            if not future.cancelled():
                future.exception()  # seen: nobody waits for it any more
            if lent:
                self._spare += 1
            else:
                self._slots.release()

        overdue.add_done_callback(ended)

    def _submit(self, job: _Job) -> None:
        self._jobs.put(job)
        if self._idle:
            self._idle -= 1
            return
        self._started += 1
        name = f"{self._name}-{self._started}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while True:
            function, loop, future = self._jobs.get()
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:  # it travels to whoever waits for it
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
                loop.call_soon_threadsafe(self._done, future, result, error)
            del function, future, result, error

    def _done(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._idle += 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:  # a future cannot carry StopIteration, and SystemExit is not for this loop
            future.set_exception(ExitError(error))


@contextlib.asynccontextmanager
async def _limited(seconds: float) -> AsyncIterator[None]:
    """OverdueError after `seconds`; a TimeoutError of the function's own passes as it is."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if limit.expired():
            raise OverdueError from error
        raise
