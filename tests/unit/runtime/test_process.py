import asyncio
import os
import signal

import pytest

from flexmarl.runtime.process import forever, run_until_signalled


async def test_returns_when_every_job_has_returned() -> None:
    done: list[str] = []

    async def job(name: str) -> None:
        await asyncio.sleep(0)
        done.append(name)

    await run_until_signalled(lambda: job("a"), lambda: job("b"))
    assert sorted(done) == ["a", "b"]


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_cancels_the_jobs_and_ends_without_an_error(sig: signal.Signals) -> None:
    cleaned: list[bool] = []

    async def job() -> None:
        try:
            os.kill(os.getpid(), sig)
            await forever()
        finally:
            cleaned.append(True)

    await run_until_signalled(job)
    assert cleaned == [True]


async def test_a_failing_job_cancels_the_others_and_surfaces() -> None:
    cancelled: list[bool] = []

    async def good() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def bad() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ExceptionGroup) as caught:
        await run_until_signalled(good, bad)
    assert caught.group_contains(ValueError, match="broken")
    assert cancelled == [True]
