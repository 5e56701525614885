"""Rollout and training overlap without changing what is trained: the trainer's invariants."""

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from structlog.testing import capture_logs
from tests.contract.trainer.conftest import (
    LOOSE,
    TOKEN,
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

from flexmarl.experience.client import ExperienceClient, Lease

TIMES = {"train_seconds", "update_seconds", "wait_seconds", "store_seconds"}
AT_ONCE = {"solver": {"maxLogprobGap": 100.0, "simulatedTokensPerSecond": 1e9}}
"""Folds of any size are worth starting."""


async def train_while_filling(
    rig: Rig, steps: int, groups: int, *, seed: int = 0, shuffled: bool = False
) -> list[dict[str, float]]:
    """Every step's metrics without its times; `seed` decides on the order of arrival only."""
    metrics = []
    async with rig.serving() as trainer:
        epoch = await rig.epoch()
        await trainer.Bind(bind(epoch=epoch), timeout=WAIT)
        for step in range(steps):
            call = asyncio.ensure_future(
                trainer.TrainStep(train(step, groups, epoch=epoch), timeout=WAIT)
            )
            order = list(range(groups))
            if shuffled:
                np.random.default_rng(seed + step).shuffle(order)
            for index in order:
                await fill_one(rig, step, index)
            reported = (await call).metrics
            metrics.append({n: reported[n] for n in reported if not n.endswith("_seconds")})
    return metrics


async def test_the_backward_pass_starts_while_groups_are_still_played(rigs: Rigs) -> None:
    rig = await rigs(AT_ONCE)
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        bound = rig.slot._bound
        assert bound is not None
        masters = bound.resident.policy.masters.values()
        call = asyncio.ensure_future(trainer.TrainStep(train(0, 2), timeout=WAIT))
        await fill_one(rig, 0, 0)
        await until(lambda: any(master.grad is not None for master in masters))
        assert not call.done()
        await fill_one(rig, 0, 1)
        assert (await call).metrics["folds"] == 2


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("algorithm", ["grpo", "reinforce-pp"])
async def test_deterministic_steps_are_bit_equal_in_any_order_of_arrival(
    rigs: Rigs, updates: int, algorithm: str
) -> None:
    seen = []
    for seed, overlap in ((0, False), (1, True), (2, True), (3, False)):
        rig = await rigs(
            {"solver": {"maxLogprobGap": 100.0, "algorithm": algorithm}},
            pipeline={"deterministic": True, "overlap": overlap},
            batch={"tasksPerStep": 4, "microBatch": 2, "updatesPerStep": updates},
        )
        metrics = await train_while_filling(rig, 2, 4, seed=seed, shuffled=seed > 0)
        seen.append((metrics, state_of(rig)))
    assert all(run == seen[0] for run in seen[1:])
    assert [step["optimizer_steps"] for step in seen[0][0]] == [updates] * 2


@pytest.mark.parametrize("correction", ["clip", "tis", "decoupled"])
async def test_other_steps_agree_to_rounding_in_float64(rigs: Rigs, correction: str) -> None:
    gradients, seen = [], []
    for seed, micro_batch, overlap in ((0, 6, False), (1, 1, True), (2, 2, True), (3, 4, True)):
        rig = await rigs(
            {"solver": {**AT_ONCE["solver"], "correction": correction}},
            dtype="float64",
            pipeline={"overlap": overlap},
            batch={"tasksPerStep": 6, "microBatch": micro_batch},
        )
        (metrics,) = await train_while_filling(rig, 1, 6, seed=seed, shuffled=seed > 0)
        # After one step the first moments are the gradient, up to one factor.
        moments = {n: v for n, v in state_of(rig).items() if n.startswith("optimizer/exp_avg/")}
        gradients.append(np.concatenate([np.frombuffer(v) for v in moments.values()]))
        metrics.pop("folds")
        seen.append(metrics)
    for gradient, metrics in zip(gradients[1:], seen[1:], strict=True):
        assert np.linalg.norm(gradient - gradients[0]) <= 1e-12 * np.linalg.norm(gradients[0])
        assert metrics == pytest.approx(seen[0], rel=1e-12, abs=1e-12)


class Repeating(ExperienceClient):
    """Hands every group out twice, as after a server that lost its memory."""

    async def lease(self, *args: Any, **kwargs: Any) -> Lease:
        lease = await super().lease(*args, **kwargs)
        return replace(lease, groups=lease.groups * 2, played=lease.played * 2)


async def test_a_group_that_comes_twice_is_trained_once(rigs: Rigs) -> None:
    rig, other = await rigs(LOOSE), await rigs(LOOSE)
    await train_while_filling(other, 1, 3)
    async with Repeating(rig.address, TOKEN) as repeating, rig.serving(repeating) as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        await fill(rig, 0, 3)
        assert (await trainer.TrainStep(train(0, 3), timeout=WAIT)).metrics["tokens"] == 12
    assert state_of(rig) == state_of(other)


async def test_whitening_needs_the_whole_step_and_says_so_once(rigs: Rigs) -> None:
    rig = await rigs({"solver": {**AT_ONCE["solver"], "algorithm": "reinforce-pp"}})
    with capture_logs() as logs:
        metrics = await train_while_filling(rig, 2, 3)
    assert [step["folds"] for step in metrics] == [3, 3]
    assert [step["dead_groups"] for step in metrics] == [0, 0]
    said = [line for line in logs if line["event"].startswith("overlap is off")]
    assert [(line["policy"], line["algorithm"]) for line in said] == [("solver", "reinforce-pp")]


async def test_dead_groups_can_weigh_nothing_in_the_denominator(rigs: Rigs) -> None:
    norms = {}
    for dead_groups, groups in (("count", 1), ("count", 2), ("exclude", 2)):
        rig = await rigs({"solver": {"maxLogprobGap": 100.0, "deadGroups": dead_groups}})
        async with rig.serving() as trainer:
            await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
            await rig.append(0, 0, rig.rows(0, 0, [65, 66], [1, 0]))
            if groups == 2:
                await rig.append(0, 1, rig.rows(0, 1, [65, 66], [1, 1]))
            metrics = (await trainer.TrainStep(train(0, groups), timeout=WAIT)).metrics
            norms[dead_groups, groups] = metrics["grad_norm"]
            assert metrics["tokens"] == 2 * groups
            assert metrics["loss_tokens"] == (2 if dead_groups == "exclude" else 2 * groups)
    assert norms["exclude", 2] == norms["count", 1]
    assert norms["count", 2] == pytest.approx(norms["count", 1] / 2, rel=1e-4)


async def test_a_simulated_step_takes_as_long_as_its_tokens(rigs: Rigs) -> None:
    rate = 200.0
    rig = await rigs({"solver": {"maxLogprobGap": 100.0, "simulatedTokensPerSecond": rate}})
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        await fill(rig, 0, 2)
        metrics = (await trainer.TrainStep(train(0, 2), timeout=WAIT)).metrics
        assert metrics["train_seconds"] >= 2 * 4 * 6 / rate  # two groups, four rows, six tokens


async def test_a_slot_that_stops_does_not_sit_out_a_simulated_step(rigs: Rigs) -> None:
    rig = await rigs({"solver": {"maxLogprobGap": 100.0, "simulatedTokensPerSecond": 1e-4}})
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        bound = rig.slot._bound
        assert bound is not None
        masters = bound.resident.policy.masters.values()
        await fill(rig, 0, 1)
        call = asyncio.ensure_future(trainer.TrainStep(train(0, 1), timeout=WAIT))
        await until(lambda: any(master.grad is not None for master in masters))
        rig.slot.stop()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
