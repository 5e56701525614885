"""What the user's code leaves behind in the event loop: nothing that it raises ends the loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.testing import capture_logs

from flexmarl.rollout import border
from flexmarl.rollout.border import ExitError
from flexmarl.rollout.unawaited import contained

Raise = Callable[[], None]
Leave = Callable[[Raise], None]
EXITS = pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
TOLD = "code of the job failed, and nobody waits for it"


def soon(fail: Raise) -> None:
    asyncio.get_running_loop().call_soon(fail)


def later(fail: Raise) -> None:
    asyncio.get_running_loop().call_later(0.01, fail)


def when_done(fail: Raise) -> None:
    future = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda _: fail())
    future.set_result(None)


def when_readable(fail: Raise) -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()

    def read() -> None:
        loop.remove_reader(ours)
        ours.close()
        theirs.close()
        fail()

    loop.add_reader(ours, read)
    theirs.send(b"x")


def task(fail: Raise) -> None:
    async def left() -> None:
        await asyncio.sleep(0)
        fail()

    asyncio.ensure_future(left())  # noqa: RUF006 - as careless code does


WAYS = pytest.mark.parametrize("leave", [soon, later, when_done, when_readable, task])


def contained_run(code: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    """What is told while `code` is called and what it left behind runs."""

    async def main() -> None:
        with contained(), bound_contextvars(group="1/2/3", task="t"):
            await border.call(code, 60)
            await asyncio.sleep(0.05)
            gc.collect()  # a task is told of when nobody can wait for it any more
            await asyncio.sleep(0)

    with capture_logs(processors=[merge_contextvars]) as logs, asyncio.Runner() as runner:
        runner.run(main())
    return logs


@WAYS
@EXITS
def test_an_exit_ends_nothing_and_is_told_once_with_the_group(
    leave: Leave, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    async def code() -> None:
        for _ in range(3):
            leave(fail)

    told = [(each["event"], each["group"], each["task"]) for each in contained_run(code)]
    assert told == [(TOLD, "1/2/3", "t")]


@WAYS
@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit(), KeyError()], ids=repr)
def test_other_errors_end_nothing_either(leave: Leave, error: BaseException) -> None:
    def fail() -> None:
        raise error

    async def code() -> None:
        leave(fail)

    told = [each["event"] for each in contained_run(code)]
    cancelled = leave is task and isinstance(error, asyncio.CancelledError)  # it ended as told
    assert told == ([] if cancelled else [TOLD])


def test_an_exit_that_a_thread_of_the_code_s_hands_over_ends_nothing() -> None:
    def fail() -> None:
        raise SystemExit(3)

    async def code() -> None:
        call = asyncio.get_running_loop().call_soon_threadsafe
        thread = threading.Thread(target=call, args=(fail,))
        thread.start()
        thread.join()

    contained_run(code)


def test_what_comes_after_an_exit_in_the_same_turn_is_not_forgotten() -> None:
    seen = list[int]()

    def fail() -> None:
        raise SystemExit(3)

    async def code() -> None:
        loop = asyncio.get_running_loop()
        for number in range(3):
            loop.call_soon(seen.append, number)
            loop.call_soon(fail)

    contained_run(code)
    assert seen == [0, 1, 2]


@EXITS
async def test_an_exit_of_a_task_is_for_who_awaits_it(error: BaseException) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise error

    async def code() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(fail()).cancel()

    with capture_logs() as logs, contained(), pytest.raises(ExceptionGroup) as raised:
        await border.call(code, 60)
    assert raised.group_contains(ExitError, match=type(error).__name__)
    assert logs == []


def test_what_the_block_itself_raises_ends_the_loop_as_ever() -> None:
    async def main() -> None:
        with contained():
            await asyncio.sleep(0)
            raise SystemExit(5)

    with pytest.raises(SystemExit, match="5"), asyncio.Runner() as runner:
        runner.run(main())


def test_a_signal_ends_the_loop_as_ever() -> None:
    """While it waits, which is no code of the user's."""
    waits = threading.Event()

    def interrupt() -> None:
        waits.wait()
        threading.Event().wait(0.2)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)

    async def main() -> None:
        with contained():
            threading.Thread(target=interrupt).start()
            waits.set()
            await asyncio.sleep(60)

    with interruptible(), pytest.raises(KeyboardInterrupt), asyncio.Runner() as runner:
        runner.run(main())


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """By a handler that asyncio leaves alone."""

    def raises(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, raises)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
