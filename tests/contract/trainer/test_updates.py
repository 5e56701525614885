"""Several optimizer steps per version: when they happen, and what an interruption costs."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
from tests.contract.trainer.conftest import (
    WAIT,
    Rig,
    Rigs,
    bind,
    fill,
    fill_one,
    state_of,
    train,
    until,
    version_of,
)

from flexmarl.contracts.v1 import trainer_pb2 as pb
from flexmarl.contracts.v1 import trainer_pb2_grpc as pb_grpc

TWO = {"tasksPerStep": 4, "updatesPerStep": 2}
SOLVER = {"solver": {"maxLogprobGap": 100.0, "correction": "decoupled", "lr": 0.05}}
DETERMINISTIC = {"deterministic": True}


async def begun(
    rig: Rig, trainer: pb_grpc.TrainerAsyncStub, epoch: int
) -> asyncio.Future[pb.TrainStepResponse]:
    """The step's call after its first update: the other half of its groups is still played."""
    await trainer.Bind(bind(epoch=epoch), timeout=WAIT)
    bound = rig.slot._bound
    assert bound is not None
    policy = bound.resident.policy
    call = asyncio.ensure_future(trainer.TrainStep(train(0, 4, epoch=epoch), timeout=WAIT))
    await fill_one(rig, 0, 1)
    await fill_one(rig, 0, 0)
    await until(lambda: policy.updates == 1)
    return call


async def undisturbed(rigs: Rigs) -> dict[str, bytes]:
    rig = await rigs(SOLVER, pipeline=DETERMINISTIC, batch=TWO)
    async with rig.serving() as trainer:
        epoch = await rig.epoch()
        await trainer.Bind(bind(epoch=epoch), timeout=WAIT)
        await fill(rig, 0, 4)
        response = await trainer.TrainStep(train(0, 4, epoch=epoch), timeout=WAIT)
        assert response.metrics["optimizer_steps"] == 2
    return state_of(rig)


async def test_a_version_is_published_after_its_last_update_only(rigs: Rigs) -> None:
    rig = await rigs(SOLVER, pipeline=DETERMINISTIC, batch=TWO)
    async with rig.serving() as trainer:
        call = await begun(rig, trainer, await rig.epoch())
        assert version_of(rig) == 0
        assert not call.done()
        await fill_one(rig, 0, 3)
        await fill_one(rig, 0, 2)
        await call
        assert version_of(rig) == 1
    assert state_of(rig) == await undisturbed(rigs)


async def test_a_step_cancelled_between_its_updates_starts_again_from_its_version(
    rigs: Rigs,
) -> None:
    rig = await rigs(SOLVER, pipeline=DETERMINISTIC, batch=TWO)
    async with rig.serving() as trainer:
        call = await begun(rig, trainer, await rig.epoch())
        call.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as error:  # what it holds is no version any more
            await trainer.TrainStep(train(0, 4), timeout=WAIT)
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        epoch = await rig.epoch()
        bound = await trainer.Bind(bind(epoch=epoch), timeout=WAIT)
        assert bound.weights.version == 0
        await fill_one(rig, 0, 3)
        await fill_one(rig, 0, 2)
        await trainer.TrainStep(train(0, 4, epoch=epoch), timeout=WAIT)
    assert state_of(rig) == await undisturbed(rigs)


async def test_a_slot_fenced_between_its_updates_keeps_nothing_of_them(rigs: Rigs) -> None:
    rig = await rigs(SOLVER, pipeline=DETERMINISTIC, batch=TWO)
    async with rig.serving() as trainer:
        call = await begun(rig, trainer, await rig.epoch())
        epoch = await rig.epoch()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        assert error.value.code() is grpc.StatusCode.ABORTED
        await trainer.Bind(bind(epoch=epoch), timeout=WAIT)
        await fill_one(rig, 0, 3)
        await fill_one(rig, 0, 2)
        await trainer.TrainStep(train(0, 4, epoch=epoch), timeout=WAIT)
    assert state_of(rig) == await undisturbed(rigs)


async def test_updates_of_a_step_are_what_steps_of_their_groups_would_be(rigs: Rigs) -> None:
    """Clipped against the engine's log-probs, the second update is the next step's first."""
    clipped = {"solver": {"maxLogprobGap": 100.0, "correction": "clip"}}
    joined = await rigs(clipped, pipeline=DETERMINISTIC, batch=TWO)
    apart = await rigs(clipped, pipeline={"deterministic": True, "overlap": True})
    rows = [([10 * i, 10 * i + 1, 3], [1.0, 0.0, 0.5]) for i in range(4)]
    async with joined.serving() as trainer:
        await trainer.Bind(bind(epoch=await joined.epoch()), timeout=WAIT)
        for index, (tokens, rewards) in enumerate(rows):
            await joined.append(0, index, joined.rows(0, index, tokens, list(rewards)))
        both = (await trainer.TrainStep(train(0, 4), timeout=WAIT)).metrics
    norms, losses = [], []
    async with apart.serving() as trainer:
        await trainer.Bind(bind(epoch=await apart.epoch()), timeout=WAIT)
        for step in (0, 1):
            for index in (0, 1):
                tokens, rewards = rows[2 * step + index]
                await apart.append(step, index, apart.rows(step, index, tokens, list(rewards)))
            metrics = (await trainer.TrainStep(train(step, 2), timeout=WAIT)).metrics
            norms.append(metrics["grad_norm"])
            losses.append(metrics["loss"])
    assert state_of(joined) == state_of(apart)
    assert both["grad_norm"] == pytest.approx(sum(norms) / 2, rel=1e-12)
    assert both["loss"] == pytest.approx(sum(losses) / 2, rel=1e-12, abs=1e-12)
    assert both["tokens"] == 12


async def test_later_updates_are_held_against_the_version_that_is_still_published(
    rigs: Rigs,
) -> None:
    rig = await rigs({"solver": {"correction": "decoupled", "lr": 0.05}}, batch=TWO)
    async with rig.serving() as trainer:
        first = await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        spread = await rig.distribution(first.weights)
        own = [spread[65].item(), spread[66].item()]
        for index in range(4):
            await rig.append(0, index, rig.rows(0, index, [65, 66], [1, 0], logprobs=own))
        metrics = (await trainer.TrainStep(train(0, 4), timeout=WAIT)).metrics
    assert metrics["optimizer_steps"] == 2
    assert metrics["compared_tokens"] == 8
    assert metrics["logprob_gap_max"] < 1e-5  # of the weights that sampled
    assert metrics["correction_weight_mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["ratio_max"] > 1.01  # of those that are trained


async def test_an_update_without_contrast_takes_no_optimizer_step(rigs: Rigs) -> None:
    rig = await rigs(SOLVER, pipeline=DETERMINISTIC, batch=TWO)
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        for index in range(4):
            rewards = [1.0, 1.0] if index < 2 else [1.0, 0.0]
            await rig.append(0, index, rig.rows(0, index, [65, 66], list(rewards)))
        response = await trainer.TrainStep(train(0, 4), timeout=WAIT)
        assert response.updated
        assert response.metrics["optimizer_steps"] == 1
        assert response.metrics["dead_groups"] == 2


async def test_groups_that_do_not_split_into_the_updates_are_refused(rigs: Rigs) -> None:
    rig = await rigs(SOLVER, batch=TWO)
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await trainer.TrainStep(train(0, 3), timeout=WAIT)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "2 updates" in str(error.value.details())
