"""Tokens of older versions: how old they may be, what is made of them, what is reported."""

import math
from dataclasses import replace

import grpc
import grpc.aio
import pytest
from tests.contract.trainer.conftest import LOOSE, WAIT, Rigs, bind, fill, state_of, train

STALE = {"maxStaleness": 1}


async def test_older_tokens_are_trained_and_never_compared_with_the_new_weights(
    rigs: Rigs,
) -> None:
    rig = await rigs({"solver": {"maxLogprobGap": 0.2, "correctionCap": 2.0}}, pipeline=STALE)
    async with rig.serving() as trainer:
        first = await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        spread = await rig.distribution(first.weights)
        own = [spread[65].item(), spread[66].item()]
        await rig.append(0, 0, rig.rows(0, 0, [65, 66], [1, 1], logprobs=own))
        assert (await trainer.TrainStep(train(0, 1), timeout=WAIT)).metrics["stale_tokens"] == 0
        # Nothing was learnt: version 1 is version 0. The older group was ten times likelier then.
        older = [value + math.log(10) for value in own]
        rarer = [value - math.log(10) for value in own]
        await rig.append(1, 0, rig.rows(1, 0, [65, 66], [1, 0], logprobs=older, version=0))
        await rig.append(1, 1, rig.rows(1, 1, [65, 66], [1, 0], logprobs=rarer, version=0))
        await rig.append(1, 2, rig.rows(1, 2, [65, 66], [1, 0], logprobs=own))
        metrics = (await trainer.TrainStep(train(1, 3), timeout=WAIT)).metrics
    assert (metrics["tokens"], metrics["compared_tokens"], metrics["stale_tokens"]) == (6, 2, 4)
    assert metrics["staleness_mean"] == pytest.approx(4 / 6)
    assert metrics["staleness_max"] == 1
    assert metrics["logprob_gap_max"] < 1e-5
    # 1/10 twice, 10 cut to 2 twice, 1 twice.
    assert metrics["correction_weight_mean"] == pytest.approx((0.2 + 4 + 2) / 6, rel=1e-5)
    assert metrics["correction_capped_fraction"] == pytest.approx(2 / 6)


async def test_only_the_older_tokens_of_a_group_are_stale(rigs: Rigs) -> None:
    rig = await rigs(LOOSE, pipeline=STALE)
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        await fill(rig, 0, 1)
        await trainer.TrainStep(train(0, 1), timeout=WAIT)
        rows = rig.rows(1, 0, [65, 66], [1, 0])
        await rig.append(
            1, 0, [rows[0], replace(rows[1], turns=rig.rows(1, 0, [1], [1], version=0)[0].turns)]
        )
        metrics = (await trainer.TrainStep(train(1, 1), timeout=WAIT)).metrics
    assert (metrics["stale_tokens"], metrics["compared_tokens"]) == (1, 1)


async def test_what_the_store_lets_through_is_checked_again(rigs: Rigs) -> None:
    rig = await rigs(LOOSE, pipeline=STALE)
    strict = rig.job.model_copy(
        update={
            "spec": rig.job.spec.model_copy(
                update={"pipeline": rig.job.spec.pipeline.model_copy(update={"max_staleness": 0})}
            )
        }
    )
    async with rig.serving(job=strict) as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        await fill(rig, 0, 1)
        await trainer.TrainStep(train(0, 1), timeout=WAIT)
        saved = state_of(rig)
        await rig.append(1, 0, rig.rows(1, 0, [65, 66], [1, 0], version=0))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await trainer.TrainStep(train(1, 1), timeout=WAIT)
        assert error.value.code() is grpc.StatusCode.INTERNAL
        assert "tokens of version 0; on policy every token of step 1" in str(error.value.details())
    assert state_of(rig) == saved
