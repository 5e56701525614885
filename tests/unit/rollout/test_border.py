"""What comes out of the user's code, and what does not."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from structlog.testing import capture_logs

from flexmarl.rollout import border
from flexmarl.rollout.border import ExitError, OverdueError, exits, waiting
from flexmarl.rollout.rewards.threads import DaemonThreads

Code = Callable[[], Coroutine[Any, Any, Any]]


def raising(error: BaseException) -> Code:
    async def code() -> None:
        await asyncio.sleep(0)
        raise error

    return code


EXITS = [
    SystemExit(3),
    SystemExit(),
    KeyboardInterrupt(),
    asyncio.CancelledError("a child"),
    GeneratorExit(),
    BaseExceptionGroup("several", [SystemExit(3)]),
]


@pytest.mark.parametrize("error", EXITS, ids=repr)
async def test_whatever_is_raised_comes_out_as_an_exception(error: BaseException) -> None:
    with pytest.raises(ExitError, match=type(error).__name__):
        await border.call(raising(error), 60)


@pytest.mark.parametrize("error", EXITS, ids=repr)
async def test_whatever_is_raised_at_once_comes_out_as_an_exception(error: BaseException) -> None:
    with pytest.raises(ExitError, match=type(error).__name__), exits():
        raise error


async def test_an_error_that_cannot_say_what_it_is_is_told_by_its_kind() -> None:
    class Mute(BaseException):
        def __str__(self) -> str:
            raise SystemExit(3)

    with pytest.raises(ExitError, match="Mute"):
        await border.call(raising(Mute()), 60)


async def test_code_that_cancels_itself_has_failed_and_nobody_else() -> None:
    async def code() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    with pytest.raises(ExitError, match="CancelledError"):
        await border.call(code, 60)


async def test_code_may_await_a_child_that_it_cancelled() -> None:
    async def code() -> str:
        loser = asyncio.ensure_future(asyncio.sleep(60))
        await asyncio.sleep(0)
        loser.cancel()
        try:
            await loser
        except asyncio.CancelledError:
            return "won"
        return "lost"

    assert await border.call(code, 60) == "won"


async def test_who_is_cancelled_while_it_waits_cancels_the_code() -> None:
    seen = list[str]()

    async def code() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    waits = asyncio.ensure_future(border.call(code, 60))
    await asyncio.sleep(0.01)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert seen == ["cancelled"]


async def test_code_that_does_not_end_of_being_cancelled_is_left_and_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(border, "GRACE_SECONDS", 0.05)
    release = asyncio.Event()

    async def code() -> None:
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    with capture_logs() as logs, pytest.raises(OverdueError, match="goes on"):
        await border.call(code, 0.05)
    assert ["goes on although" in entry["event"] for entry in logs] == [True]
    release.set()
    await asyncio.sleep(0.01)
    assert not border._LEFT


async def test_waiting_for_a_thread_is_no_part_of_the_time_of_the_code_that_asks() -> None:
    release = threading.Event()
    threads = DaemonThreads("test", threads=1, spare=1)
    busy = asyncio.ensure_future(threads.run(release.wait, 60))
    await asyncio.sleep(0)

    async def code() -> int:
        return await threads.run(lambda: 5, 60)

    several = [asyncio.ensure_future(border.call(code, 0.2)) for _ in range(3)]
    await asyncio.sleep(0.5)  # more than each may take
    assert not any(each.done() for each in several)
    release.set()
    assert await asyncio.gather(*several) == [5, 5, 5]
    await busy


async def test_after_a_wait_the_rest_of_the_time_is_left() -> None:
    async def code() -> None:
        with waiting():
            await asyncio.sleep(0.3)
        await asyncio.sleep(60)

    began = asyncio.get_running_loop().time()
    with pytest.raises(OverdueError):
        await border.call(code, 0.2)
    assert asyncio.get_running_loop().time() - began >= 0.5


async def test_a_timeout_of_the_code_s_own_is_its_own() -> None:
    with pytest.raises(TimeoutError, match="mine"):
        await border.call(raising(TimeoutError("mine")), 60)
