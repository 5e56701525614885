"""The border to the user's code: nothing that comes out of it ends the worker, or stays for ever.

Workflows with their tools and environments, rewards and filters run here. Out of it come results
and exceptions; what ends programs or tasks elsewhere (`sys.exit` in a tool, a child that was
cancelled and is awaited) is an error like any other. What takes too long is cancelled, and left
alone when it does not end of that. Waiting for what many calls share is not part of the time that
one may take. What code leaves behind in the event loop is `unawaited`'s.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

import structlog
from prometheus_client import Gauge

ResultT = TypeVar("ResultT")
WAITING = Gauge(
    "flexmarl_rollout_waiting_calls", "Calls of rewards that wait for a thread or a process."
)

GRACE_SECONDS = 5.0
"""In which code that was cancelled has to end."""
log = structlog.get_logger()


class OverdueError(Exception):
    """The code took longer than it may."""


class ExitError(Exception):
    """The code raised what is no error of a program, as SystemExit and CancelledError."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(words(raised).rstrip(": "))
        self.raised = raised


class Clock:
    """The time of one call, which stands still while somebody else has to make way."""

    def __init__(self, seconds: float) -> None:
        self.limit = asyncio.timeout(seconds)
        self._left = seconds
        self._waits = 0
        self._over = False

    @property
    def left(self) -> float:
        """Seconds, at least."""
        ends = self.limit.when()
        if ends is None:
            return self._left
        return max(0.0, ends - asyncio.get_running_loop().time())

    def stop(self) -> None:
        self._waits += 1
        if self._waits == 1 and not self._settled():
            self._left = self.left
            self.limit.reschedule(None)

    def go_on(self) -> None:
        self._waits -= 1
        if not self._waits and not self._settled():
            self.limit.reschedule(asyncio.get_running_loop().time() + self._left)

    def over(self) -> None:
        """The call is; tasks that it left behind may still tell of their waits."""
        self._over = True

    def _settled(self) -> bool:
        return self._over or self.limit.expired()


_CLOCK: ContextVar[Clock | None] = ContextVar("clock", default=None)
"""Of the call whose code this is."""
_LEFT: set[asyncio.Task[Any]] = set()
"""Code that did not end when it was cancelled."""


async def call(function: Callable[[], Awaitable[ResultT]], seconds: float) -> ResultT:
    """What the user's function returns. OverdueError; else an Exception, whatever it raised."""
    clock, context = Clock(seconds), copy_context()
    context.run(_CLOCK.set, clock)
    task = asyncio.create_task(_within(clock, function), context=context)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=clock.left + GRACE_SECONDS)
            if clock.limit.expired() and not task.done():
                raise OverdueError("it was cancelled, and goes on")
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE_SECONDS)
        raise
    finally:
        if not task.done():
            _leave(task)
    if task.cancelled():
        raise ExitError(asyncio.CancelledError())  # by itself
    return task.result()


@contextmanager
def waiting() -> Iterator[None]:
    """While code waits for what it shares with others: its time stands still."""
    clock = _CLOCK.get()
    if clock is not None:
        clock.stop()
    try:
        with WAITING.track_inprogress():
            yield
    finally:
        if clock is not None:
            clock.go_on()


@contextmanager
def exits() -> Iterator[None]:
    """Out of the block, which runs code of the user's, comes an Exception, whatever was raised."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and _is_to_end():
            raise
        raise ExitError(error) from error


def is_called() -> bool:
    """Whether this is the user's code, or what it left behind."""
    return _CLOCK.get() is not None


def words(error: BaseException) -> str:
    """Its kind and what it says, if it can: its class may be the user's."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except BaseException:
        return kind


def raised_at(error: BaseException) -> str:
    """Its kind and the line that raised it: what is alike in many episodes."""
    raised = error.raised if isinstance(error, ExitError) else error
    frames = traceback.extract_tb(raised.__traceback__)
    at = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(raised).__name__}{at}"


async def _within(clock: Clock, function: Callable[[], Awaitable[ResultT]]) -> ResultT:
    try:
        async with clock.limit:
            with exits():
                return await function()
    except TimeoutError as error:
        if clock.limit.expired():
            raise OverdueError from error
        raise
    finally:
        clock.over()


def _is_to_end() -> bool:
    """Whether somebody has cancelled this very task."""
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())


def _leave(task: asyncio.Task[Any]) -> None:
    if not _LEFT:
        log.error(
            "code of the job goes on although it was cancelled", function=str(task.get_coro())
        )
    _LEFT.add(task)
    task.add_done_callback(_ended)


def _ended(task: asyncio.Task[Any]) -> None:
    _LEFT.discard(task)
    if not task.cancelled():
        task.exception()  # seen: nobody waits for it any more
