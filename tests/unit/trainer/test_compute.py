import asyncio
import threading

import pytest

from flexmarl.trainer.compute import Compute, threads_for


def test_small_models_get_one_thread_and_large_ones_leave_a_core() -> None:
    assert threads_for(130_000, cpus=64, slots=1) == 1
    assert threads_for(135_000_000, cpus=2, slots=1) == 1
    assert threads_for(135_000_000, cpus=17, slots=2) == 8


async def test_work_runs_in_one_thread_in_order() -> None:
    async with Compute() as compute:
        names = await asyncio.gather(
            *(compute.run(lambda: threading.current_thread().name) for _ in range(3))
        )
    assert len(set(names)) == 1
    assert names[0] != threading.current_thread().name


async def test_a_cancelled_caller_leaves_once_the_work_has_ended() -> None:
    started, go, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go.wait(10)
        ended.set()

    async with Compute() as compute:
        call = asyncio.ensure_future(compute.run(work))
        await asyncio.to_thread(started.wait, 10)
        call.cancel()
        await asyncio.sleep(0)
        assert not call.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert ended.is_set()


async def test_errors_come_back_to_the_caller() -> None:
    async with Compute() as compute:
        with pytest.raises(ZeroDivisionError):
            await compute.run(lambda: 1 / 0)
