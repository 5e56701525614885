"""Groups of earlier steps trained again: which, how often, and the same at every repetition."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.contract.trainer.conftest import (
    LOOSE,
    WAIT,
    Rig,
    Rigs,
    bind,
    fill,
    fill_one,
    state_of,
    train,
    until,
)

from flexmarl.contracts.v1 import trainer_pb2 as pb
from flexmarl.contracts.v1 import trainer_pb2_grpc as pb_grpc

REPLAY = {"deterministic": True, "replay": {"share": 0.5, "maxAge": 2}}
STEPS, GROUPS = 4, 4
BATCH = {"tasksPerStep": GROUPS, "updatesPerStep": 2}


async def play(rig: Rig, *, interrupted: int | None = None) -> list[dict[str, float]]:
    """All steps as the orchestrator closes them; in one of them the call dies once."""
    metrics = []
    async with rig.serving() as trainer:
        epoch = await rig.epoch()
        await trainer.Bind(bind(epoch=epoch), timeout=WAIT)
        for step in range(STEPS):
            if step == interrupted:
                epoch = await interrupt(rig, trainer, step, epoch)
            else:
                await fill(rig, step, GROUPS)
            answer = await trainer.TrainStep(train(step, GROUPS, epoch=epoch), timeout=WAIT)
            await rig.experience.close_step(rig.incarnation, step)
            metrics.append(dict(answer.metrics))
    return metrics


async def interrupt(rig: Rig, trainer: pb_grpc.TrainerAsyncStub, step: int, epoch: int) -> int:
    """Fill the step and end its call between its updates; the epoch with which it goes on."""
    bound = rig.slot._bound
    assert bound is not None
    policy, before = bound.resident.policy, bound.resident.policy.updates
    call = asyncio.ensure_future(trainer.TrainStep(train(step, GROUPS, epoch=epoch), timeout=WAIT))
    for index in range(GROUPS - 1):
        await fill_one(rig, step, index)
    await until(lambda: policy.updates > before)
    call.cancel()
    epoch = await rig.epoch()
    await trainer.Bind(bind(epoch=epoch, version=step), timeout=WAIT)
    await fill_one(rig, step, GROUPS - 1)
    return epoch


async def test_earlier_groups_are_trained_beside_the_steps_own(rigs: Rigs) -> None:
    rig = await rigs(LOOSE, pipeline=REPLAY, batch=BATCH)
    metrics = await play(rig)
    assert [step["replayed_groups"] for step in metrics] == [0, 2, 2, 2]
    assert [step["replayed_tokens"] for step in metrics] == [0, 8, 8, 8]
    assert [step["tokens"] for step in metrics] == [16, 24, 24, 24]
    assert [step["stale_tokens"] for step in metrics] == [0, 8, 8, 8]
    assert metrics[1]["staleness_max"] == 1
    assert max(step["staleness_max"] for step in metrics) <= 2
    assert all(step["replay_lost_groups"] == 0 for step in metrics)


async def test_replayed_groups_are_whitened_with_the_step_that_trains_them(rigs: Rigs) -> None:
    solver = {**LOOSE["solver"], "algorithm": "reinforce-pp"}
    rig = await rigs({"solver": solver}, pipeline=REPLAY, batch=BATCH)
    metrics = await play(rig)
    assert [step["tokens"] for step in metrics] == [16, 24, 24, 24]
    assert [step["replayed_groups"] for step in metrics] == [0, 2, 2, 2]


@pytest.mark.parametrize("interrupted", [None, 2])
async def test_a_repeated_step_replays_the_same_groups(rigs: Rigs, interrupted: int | None) -> None:
    rig, again = [await rigs(LOOSE, pipeline=REPLAY, batch=BATCH) for _ in range(2)]
    await play(rig)
    await play(again, interrupted=interrupted)
    assert state_of(rig) == state_of(again)


async def test_after_a_roll_back_a_deterministic_job_replays_what_it_did_the_first_time(
    rigs: Rigs, tmp_path: Path
) -> None:
    rig, other = [await rigs(LOOSE, pipeline=REPLAY, batch=BATCH) for _ in range(2)]
    await play(other)
    directory = str(tmp_path / "solver")
    async with rig.serving() as trainer:
        epoch = await rig.epoch()
        await trainer.Bind(bind(epoch=epoch), timeout=WAIT)
        for step in range(STEPS):
            if step == 1:
                request = pb.SaveCheckpointRequest(
                    policy="solver", epoch=epoch, directory=directory
                )
                await trainer.SaveCheckpoint(request, timeout=WAIT)
            await fill(rig, step, GROUPS)
            await trainer.TrainStep(train(step, GROUPS, epoch=epoch), timeout=WAIT)
            await rig.experience.close_step(rig.incarnation, step)
    # Its pod is lost, and with it the shared memory.
    rig = rig.elsewhere(tmp_path / "elsewhere")
    await rig.experience.roll_back(rig.incarnation, 1)
    async with rig.serving() as trainer:
        epoch = await rig.epoch()
        start = bind(epoch=epoch, version=1, checkpoint=directory, discard=True)
        await trainer.Bind(start, timeout=WAIT)
        for step in range(1, STEPS):
            await fill(rig, step, GROUPS)
            answer = await trainer.TrainStep(train(step, GROUPS, epoch=epoch), timeout=WAIT)
            assert answer.metrics["replay_lost_groups"] == 0
    assert state_of(rig) == state_of(other)


async def test_groups_that_are_not_there_any_more_are_counted(rigs: Rigs, tmp_path: Path) -> None:
    """The job goes on in another store, from a checkpoint."""
    rig, moved = [await rigs(LOOSE, pipeline=REPLAY, batch=BATCH) for _ in range(2)]
    directory = str(tmp_path / "solver")
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        await fill(rig, 0, GROUPS)
        await trainer.TrainStep(train(0, GROUPS), timeout=WAIT)
        request = pb.SaveCheckpointRequest(policy="solver", epoch=1, directory=directory)
        await trainer.SaveCheckpoint(request, timeout=WAIT)
    async with moved.serving() as trainer:
        epoch = await moved.epoch()
        await trainer.Bind(bind(epoch=epoch, version=1, checkpoint=directory), timeout=WAIT)
        await fill(moved, 1, GROUPS)
        metrics = (await trainer.TrainStep(train(1, GROUPS), timeout=WAIT)).metrics
    assert (metrics["replayed_groups"], metrics["replay_lost_groups"]) == (0, 2)
    assert metrics["tokens"] == 16
