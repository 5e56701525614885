"""What an orchestrator that is asked to save writes, and what it leaves alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest
from tests.contract.experience.conftest import Server
from tests.contract.orchestrator.conftest import QUICK, Team, team
from tests.contract.orchestrator.test_failures import once_at
from tests.contract.orchestrator.test_process import outcome, start
from tests.unit.orchestrator.jobs import make_job

from flexmarl.contracts.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from flexmarl.orchestrator.desk import Desk
from flexmarl.orchestrator.limits import Limits
from flexmarl.runtime.errors import FencedError
from flexmarl.runtime.grpc import channel, wait_ready


async def saved(desk: Desk) -> int:
    async with asyncio.timeout(60):
        while desk.saved is None:  # noqa: ASYNC110 - set by what runs beside
            await asyncio.sleep(0.01)
    return desk.saved


async def rests(around: Team, desk: Desk, limits: Limits = QUICK) -> int:
    """Run until it rests, then end it; the step at which it stands."""
    run = asyncio.ensure_future(around.run(limits, desk=desk))
    step = await saved(desk)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    return step


def checkpoints(around: Team) -> list[str]:
    return sorted(path.name for path in around.settings.run_dir.glob("checkpoints/step-*"))


async def test_before_the_first_step_there_is_nothing_to_save(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        desk = Desk()
        desk.save.set()
        assert await rests(around, desk) == 0
        assert checkpoints(around) == []
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()


async def test_what_is_saved_already_is_not_saved_again(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(checkpoint={"everySteps": 2}), tmp_path, store_server) as around:
        desk = Desk()
        around.workers[0].plays = once_at(2, 0, desk.save.set)
        assert await rests(around, desk) == 2
        (found,) = checkpoints(around)
        manifest = around.settings.run_dir / "checkpoints" / found / "manifest.json"
        before = manifest.stat().st_mtime_ns
        again = Desk()
        again.save.set()
        assert await rests(around, again) == 2
        assert checkpoints(around) == [found]
        assert manifest.stat().st_mtime_ns == before
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()


async def test_every_step_of_a_job_that_is_suspended_again_and_again_is_trained_once(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(checkpoint={"everySteps": 99}), tmp_path, store_server) as around:
        for step in range(1, around.job.spec.steps):
            desk = Desk()
            around.workers[0].plays = once_at(step, 1, desk.save.set)
            assert await rests(around, desk) in (step, step + 1)
            around.memory.states.clear()
            for trainer in around.trainers:
                trainer.restart()
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        assert all(times == 1 for (_, step), times in around.ledger.times.items() if step == 0)


async def test_one_that_was_replaced_saves_nothing(tmp_path: Path, store_server: Server) -> None:
    """It hears of its successor before it touches the files that are another's."""
    async with team(make_job(), tmp_path, store_server) as around:
        desk, asked = Desk(), asyncio.Event()
        gate = around.workers[0].gates[1, 1] = asyncio.Event()
        around.workers[0].plays = once_at(1, 1, asked.set)
        first = asyncio.ensure_future(around.run(replace(QUICK, confirm=1000), desk=desk))
        await asked.wait()
        await around.experience.take_incarnation()
        desk.save.set()
        with pytest.raises(FencedError):
            await first
        gate.set()
        assert desk.saved is None
        assert checkpoints(around) == []


async def test_the_process_saves_when_it_is_told_to_and_stays_until_it_is_ended(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        around.workers[0].gates[1, 3] = asyncio.Event()
        playing = asyncio.Event()
        around.workers[0].plays = once_at(1, 3, playing.set)
        address = f"unix://{tmp_path}/o.sock"
        process = await start(around, address)
        await wait_ready(address, 60)
        await asyncio.wait_for(playing.wait(), 60)
        async with channel(address, around.settings.token) as opened:
            stub = orchestrator_pb2_grpc.OrchestratorStub(opened)
            assert not await _has_saved(stub)
            await stub.Save(orchestrator_pb2.SaveRequest(), timeout=60)
            async with asyncio.timeout(30):
                while not await _has_saved(stub):  # noqa: ASYNC110 - another process says it
                    await asyncio.sleep(0.05)
        assert process.returncode is None
        process.terminate()
        code, said = await outcome(process)
        assert code == 143, said
        assert checkpoints(around) == ["step-00000001"]
        around.workers[0].gates.clear()
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()


async def _has_saved(stub: orchestrator_pb2_grpc.OrchestratorAsyncStub) -> bool:
    try:
        said = await stub.Progress(orchestrator_pb2.ProgressRequest(), timeout=60)
    except grpc.aio.AioRpcError:
        return False
    return bool(said.HasField("saved") and said.saved == 1)
