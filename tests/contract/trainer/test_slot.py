"""A slot over a real channel: what it learns, what it refuses, what survives it."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.contract.trainer.conftest import (
    LOOSE,
    TOKEN,
    WAIT,
    Rig,
    Rigs,
    bind,
    fill,
    fill_one,
    refused,
    state_of,
    train,
)

from flexmarl.contracts.v1 import trainer_pb2 as pb
from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.samples import GroupId, PolicySamples
from flexmarl.runtime.errors import UnavailableError


async def test_a_step_makes_the_rewarded_token_likelier(rigs: Rigs) -> None:
    rig = await rigs()
    async with rig.serving() as trainer:
        epoch = await rig.epoch()
        first = (await trainer.Bind(bind(epoch=epoch), timeout=WAIT)).weights
        assert first.version == 0
        assert first.address == "unix:///sidecar.sock"
        before = await rig.distribution(first)
        logprobs = [before[65].item(), before[66].item()]
        for index in range(2):
            await rig.append(0, index, rig.rows(0, index, [65, 66], [1, 0], logprobs=logprobs))
        response = await trainer.TrainStep(train(0, 2), timeout=WAIT)
        assert response.updated
        assert response.weights.version == 1
        after = await rig.distribution(response.weights)
        assert after[65] > before[65]
        assert after[66] < before[66]
        metrics = response.metrics
        assert metrics["logprob_gap_max"] < 1e-5
        assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-5)
        assert (metrics["tokens"], metrics["sequences"]) == (4, 4)
        assert await rig.experience.commit("solver", epoch, 0) == 0  # acknowledged and deleted


async def test_a_step_waits_for_groups_that_are_still_played(rigs: Rigs) -> None:
    rig = await rigs(LOOSE)
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        call = asyncio.ensure_future(trainer.TrainStep(train(0, 3), timeout=WAIT))
        await fill(rig, 0, 3)
        assert (await call).metrics["tokens"] == 12


async def test_a_repeated_step_is_answered_not_trained(rigs: Rigs) -> None:
    rig = await rigs(LOOSE)
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        await fill(rig, 0, 2)
        first = await trainer.TrainStep(train(0, 2), timeout=WAIT)
        again = await trainer.TrainStep(train(0, 2), timeout=WAIT)
        for said in (first, again):  # the second one had to acknowledge the groups once more
            assert said.metrics.pop("store_seconds") > 0
        assert again == first


class Forgetful(ExperienceClient):
    """Dies between the commit of the state and its acknowledgement."""

    async def commit(self, policy: str, epoch: int, step: int, *, keep: int = 0) -> int:
        raise UnavailableError("the process was killed here")


async def test_a_step_in_the_state_is_acknowledged_untrained_by_the_next_slot(rigs: Rigs) -> None:
    rig = await rigs(LOOSE)
    async with (
        Forgetful(rig.address, TOKEN) as forgetful,
        rig.serving(forgetful) as trainer,
    ):
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        await fill(rig, 0, 2)
        with pytest.raises(grpc.aio.AioRpcError):
            await trainer.TrainStep(train(0, 2), timeout=WAIT)
    saved = state_of(rig)
    async with rig.serving() as trainer:
        epoch = await rig.epoch()
        bound = await trainer.Bind(bind(epoch=epoch, version=0), timeout=WAIT)
        assert bound.weights.version == 1
        response = await trainer.TrainStep(train(0, 2, epoch=epoch), timeout=WAIT)
        assert response.updated
        assert response.metrics["tokens"] == 8
        assert response.weights == bound.weights
        assert await rig.experience.commit("solver", epoch, 0) == 0
    assert state_of(rig) == saved


async def test_an_older_epoch_is_refused_and_the_slot_is_free_again(rigs: Rigs) -> None:
    rig = await rigs(LOOSE)
    async with rig.serving() as trainer:
        old = await rig.epoch()
        await trainer.Bind(bind(epoch=old), timeout=WAIT)
        await fill(rig, 0, 1)
        new = await rig.epoch()
        with pytest.raises(grpc.aio.AioRpcError) as error:  # not bound with it yet
            await trainer.TrainStep(train(0, 1, epoch=new), timeout=WAIT)
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await trainer.TrainStep(train(0, 1, epoch=old), timeout=WAIT)
        assert error.value.code() is grpc.StatusCode.ABORTED
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await trainer.TrainStep(train(0, 1, epoch=old), timeout=WAIT)
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        await trainer.Bind(bind(epoch=new), timeout=WAIT)
        for call in (
            trainer.Bind(bind(epoch=old), timeout=WAIT),
            trainer.TrainStep(train(0, 1, epoch=old), timeout=WAIT),
            trainer.Unbind(pb.UnbindRequest(policy="solver", epoch=old), timeout=WAIT),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call
            assert error.value.code() is grpc.StatusCode.ABORTED
        assert (await trainer.TrainStep(train(0, 1, epoch=new), timeout=WAIT)).updated


async def test_a_cancelled_step_leaves_no_trace(rigs: Rigs) -> None:
    rig, other = await rigs(LOOSE), await rigs(LOOSE)
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        await fill(rig, 0, 1)
        with pytest.raises(grpc.aio.AioRpcError) as error:  # the second group never comes
            await trainer.TrainStep(train(0, 2), timeout=0.5)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await fill_one(rig, 0, 1)
        resumed = await trainer.TrainStep(train(0, 2), timeout=WAIT)
    async with other.serving() as trainer:
        await trainer.Bind(bind(epoch=await other.epoch()), timeout=WAIT)
        await fill(other, 0, 2)
        straight = await trainer.TrainStep(train(0, 2), timeout=WAIT)
    assert resumed.metrics["tokens"] == 8
    assert resumed.weights.checksum == straight.weights.checksum


async def test_a_slot_that_stops_gives_its_step_back(rigs: Rigs) -> None:
    rig = await rigs(LOOSE)
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        call = asyncio.ensure_future(trainer.TrainStep(train(0, 1), timeout=WAIT))
        await asyncio.sleep(0)  # before or within the step: it must not matter
        rig.slot.stop()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_weights_that_engines_do_not_sample_from_fail_the_job(rigs: Rigs) -> None:
    rig = await rigs()
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        saved = state_of(rig)
        await rig.append(0, 0, rig.rows(0, 0, [65, 66], [1, 0], logprobs=[-0.1, -0.1]))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await trainer.TrainStep(train(0, 1), timeout=WAIT)
        code, text = refused(error)
        assert code is grpc.StatusCode.INTERNAL
        assert "policy solver, step 0" in text
        assert "maxLogprobGap is 0.2" in text
        assert "weights not in sync" in text
    assert state_of(rig) == saved


@pytest.mark.parametrize("turns", [{"truncated": True}, {"temperature": 0.0}])
async def test_truncated_sampling_is_trained_without_the_gap_check(
    rigs: Rigs, turns: dict[str, Any]
) -> None:
    rig = await rigs()
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        rows = rig.rows(0, 0, [65, 66], [1, 0], logprobs=[-0.1, -0.1], **turns)
        await rig.append(0, 0, rows)
        response = await trainer.TrainStep(train(0, 1), timeout=WAIT)
        assert response.updated
        assert response.metrics["compared_tokens"] == 0
        assert response.metrics["clip_fraction"] == 0


async def test_nothing_to_learn_still_makes_a_version(rigs: Rigs) -> None:
    rig = await rigs(LOOSE)
    async with rig.serving() as trainer:
        first = await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        saved = state_of(rig)
        await rig.append(0, 0, rig.rows(0, 0, [65, 66], [1, 1]))
        await rig.append(0, 1, [])
        await rig.append(0, 2, rig.rows(0, 2, [65, 66], [None, 1]))
        response = await trainer.TrainStep(train(0, 3), timeout=WAIT)
        assert not response.updated
        assert response.weights.version == 1
        assert response.weights.checksum == first.weights.checksum
        assert response.metrics["dead_groups"] == 2
        assert response.metrics["empty_groups"] == 1
        assert response.metrics["excluded_sequences"] == 1
    assert state_of(rig) == saved


async def test_constant_groups_count_in_the_denominator(rigs: Rigs) -> None:
    alone, diluted = await rigs(LOOSE), await rigs(LOOSE)
    norms = []
    for rig, groups in ((alone, 1), (diluted, 2)):
        async with rig.serving() as trainer:
            await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
            await rig.append(0, 0, rig.rows(0, 0, [65, 66], [1, 0]))
            if groups == 2:
                await rig.append(0, 1, rig.rows(0, 1, [65, 66], [1, 1]))
            response = await trainer.TrainStep(train(0, groups), timeout=WAIT)
            norms.append(response.metrics["grad_norm"])
    assert norms[1] == pytest.approx(norms[0] / 2, rel=1e-4)


async def test_deterministic_steps_are_bit_equal_with_and_without_overlap(rigs: Rigs) -> None:
    states = []
    for overlap, shuffled in ((True, True), (True, False), (False, True)):
        rig = await rigs(
            LOOSE,
            pipeline={"deterministic": True, "overlap": overlap},
            batch={"microBatch": 2},
        )
        async with rig.serving() as trainer:
            await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
            for step in range(2):
                call = asyncio.ensure_future(trainer.TrainStep(train(step, 5), timeout=WAIT))
                await fill(rig, step, 5, shuffled=shuffled)
                assert (await call).metrics["folds"] == 3
        states.append(state_of(rig))
    assert states[0] == states[1] == states[2]


async def test_policies_take_turns_on_one_slot(rigs: Rigs) -> None:
    loose: dict[str, Any] = {"maxLogprobGap": 100.0}
    rig = await rigs({"solver": loose, "verifier": loose})
    async with rig.serving() as trainer:
        starts = {}
        for name in ("solver", "verifier"):
            epoch = await rig.epoch(name)
            starts[name] = (await trainer.Bind(bind(name, epoch), timeout=WAIT)).weights
        assert starts["solver"].checksum != starts["verifier"].checksum
        for step in range(2):
            await rig.experience.append_group(*both(rig, step))
            for name in ("solver", "verifier"):
                epoch = await rig.epoch(name)
                bound = await trainer.Bind(bind(name, epoch, version=step), timeout=WAIT)
                assert bound.weights.version == step
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await trainer.TrainStep(train(step, 1, "other", epoch), timeout=WAIT)
                assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
                trained = await trainer.TrainStep(train(step, 1, name, epoch), timeout=WAIT)
                assert trained.weights.set.endswith(name)
                await trainer.Unbind(pb.UnbindRequest(policy=name, epoch=epoch), timeout=WAIT)


def both(rig: Rig, step: int) -> Any:
    return (
        GroupId(rig.incarnation, step, 0),
        "task",
        [
            PolicySamples(name, step, tuple(rig.rows(step, 0, [65, 66], [1, 0], agent=name)))
            for name in ("solver", "verifier")
        ],
    )
