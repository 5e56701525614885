"""What the user's code gives to the event loop and does not wait for: callbacks, tasks, readers.

SystemExit and KeyboardInterrupt end an event loop wherever they are raised in it. Here they are
errors like others: that of a task is for who awaits it, and what nobody waits for is told, once per
kind, with the group and the task that it belongs to.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, TypeVar

import structlog

from flexmarl.rollout.border import ExitError, is_called, raised_at
from flexmarl.rollout.once import Once

ResultT = TypeVar("ResultT")
EXITS = (SystemExit, KeyboardInterrupt)
_TURN = "_run_once"
"""asyncio's name of one turn of its loop: between a callback that raises one of `EXITS` and the end
of the loop there is no public place."""
_CONTEXT = "_context"
"""Of a handle, which only Python 3.12 gives out."""
log = structlog.get_logger()


@contextmanager
def contained() -> Iterator[None]:
    """While it lasts, nothing that a callback or a task of the user's raises ends the loop."""
    loop = asyncio.get_running_loop()
    tasks, handler, turn = loop.get_task_factory(), loop.get_exception_handler(), _turn_of(loop)
    guard = _Guard(loop, turn)
    loop.set_task_factory(_task)
    loop.set_exception_handler(guard.told)
    vars(loop)[_TURN] = guard.turn
    try:
        yield
    finally:
        guard.over = True
        vars(loop)[_TURN] = turn
        loop.set_exception_handler(handler)
        loop.set_task_factory(tasks)


def _turn_of(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    turn: Callable[[], None] = getattr(loop, _TURN)
    return turn


class _Guard:
    """Of one loop, while it is contained."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turn: Callable[[], None]) -> None:
        self._loop, self._turn = loop, turn
        self._once = Once()
        self.over = False

    def turn(self) -> None:
        """What is left of it comes in the next one."""
        try:
            self._turn()
        except EXITS as error:
            handle = _handle(error)
            if handle is None or self.over:  # a signal's, or of whoever was contained
                raise
            self._loop.call_exception_handler(
                {"message": "a callback raised", "exception": error, "handle": handle}
            )

    def told(self, loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        """The loop's exception handler."""
        context, error = _context(about), about.get("exception")
        if context is None or error is None or not context.run(is_called):
            loop.default_exception_handler(about)
        elif self._once.first(raised_at(error)):
            event = "code of the job failed, and nobody waits for it"
            context.run(log.error, event, how=about["message"], exc_info=error)


def _handle(error: BaseException) -> asyncio.Handle | None:
    """Of the callback that raised it."""
    runners = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((each for each in runners if isinstance(each, asyncio.Handle)), None)


def _context(about: dict[str, Any]) -> Context | None:
    """A copy of the one in which it was raised; None: not known."""
    future, handle = about.get("future"), about.get("handle")
    if isinstance(future, asyncio.Task) and isinstance(work := future.get_coro(), _Contained):
        return work.context.copy()
    if isinstance(handle, asyncio.Handle):
        context: Context = getattr(handle, _CONTEXT)
        return context.copy()
    return None


def _task(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
    if is_called() and inspect.iscoroutine(work):
        work = _Contained(work)
    return asyncio.Task(work, loop=loop, **more)


class _Contained(Coroutine[Any, Any, ResultT]):
    """A coroutine out of which no exit comes."""

    def __init__(self, inner: Coroutine[Any, Any, ResultT]) -> None:
        self._inner = inner
        self.context = copy_context()
        """In which it was begun."""

    def send(self, value: Any) -> Any:
        try:
            return self._inner.send(value)
        except EXITS as error:
            raise ExitError(error) from error

    def throw(self, *error: Any) -> Any:
        try:
            return self._inner.throw(*error)
        except EXITS as raised:
            raise ExitError(raised) from raised

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, ResultT]:
        return self._inner.__await__()
