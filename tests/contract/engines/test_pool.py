"""An engine that policies share: it serves one at a time, as that one's own engine would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.contract.engines.harness import LONG, POLICY, Client, Weights, turn

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import engine_pb2, engine_pb2_grpc
from flexmarl.rollout.engines import process
from flexmarl.runtime.grpc import channel, wait_ready
from flexmarl.runtime.settings import Settings

URI = str(POLICY.model and POLICY.model.uri)
OTHER = "random://llama?hidden=16&layers=1&heads=2&context=512"
FROZEN = {"algorithm": "none"}
KINDS = ["transformers", "scripted"]


def make_job(kind: str, **engine: Any) -> MARLJob:
    """`a` and `b` have one model, `small` has another, and `judge` is not trained."""
    own = {"a": {}, "b": {}, "small": {"model": {"uri": OTHER}}, "judge": {"training": FROZEN}}
    return MARLJob.model_validate(
        {
            "metadata": {"name": "job"},
            "spec": {
                "policies": [
                    {
                        "name": name,
                        "model": {"uri": URI},
                        "engine": {"kind": kind, **engine},
                        "pools": ["few"],
                        **more,
                    }
                    for name, more in own.items()
                ],
                "pools": [{"name": "few", "role": "engine"}],
                "agents": [{"name": f"agent-{name}", "policy": name} for name in own],
                "workflow": {"name": "debate"},
                "data": {"uri": "file://unused.jsonl"},
                "steps": 1,
            },
        }
    )


@asynccontextmanager
async def running(folder: Path, job: MARLJob, policy: str = "") -> AsyncIterator[Client]:
    """Of the pool, unless `policy` is given."""
    settings = Settings(
        job_file=folder / "job.yaml",
        job_uid="job",
        listen=f"unix://{folder}/engine.sock",
        shm_dir=folder,
        drain_seconds=0,
        policy=policy,
        pool="" if policy else "few",
    )
    serving = asyncio.create_task(process.body(settings, job))
    try:
        await wait_ready(settings.listen, 60)
        async with channel(settings.listen) as connection:
            yield Client(engine_pb2_grpc.EngineStub(connection))
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def own_weights(client: Client, policy: str) -> engine_pb2.LoadWeightsResponse:
    request = engine_pb2.LoadWeightsRequest(policy=policy)
    return await client.stub.LoadWeights(request, timeout=60)


async def refused(code: grpc.StatusCode, call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    assert error.value.code() is code, error.value.details()
    return str(error.value.details())


@pytest.mark.parametrize("kind", KINDS)
async def test_it_serves_one_policy_after_another(kind: str, tmp_path: Path) -> None:
    weights = Weights(tmp_path)
    stale = grpc.StatusCode.FAILED_PRECONDITION
    async with running(tmp_path, make_job(kind)) as client:
        assert not (await client.stats()).loaded
        said = await refused(stale, client.generate(turn("t"), version=4))
        assert "no weights are loaded" in said
        await client.load(weights.publish(4), "a")
        first = await client.generate(turn("t"), version=4)
        await refused(stale, client.generate(turn("t"), version=4, policy="b"))
        ref = weights.publish(7)
        await client.load(ref, "b")
        stats = await client.stats()
        assert (stats.policy, stats.version, stats.checksum) == ("b", 7, ref.checksum)
        second = await client.generate(turn("t"), version=7, policy="b")
        said = await refused(stale, client.generate(turn("t"), version=4))
        assert said == "asked for a v4, loaded is b v7"
        await client.load(weights.publish(4), "a")
        assert (await client.generate(turn("t"), version=4))["t"].ids == first["t"].ids
        assert first["t"].ids != second["t"].ids
    weights.set.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_untrained_policy_says_what_its_own_engine_says(kind: str, tmp_path: Path) -> None:
    weights, job = Weights(tmp_path), make_job(kind)
    async with running(tmp_path, job) as client:
        await client.load(weights.publish(4), "a")
        loaded = await own_weights(client, "judge")
        assert loaded.version == 0
        shared = await client.generate(turn("t"), policy="judge")
        await client.load(weights.publish(4), "a")  # over the judge's own
        assert (await own_weights(client, "judge")).checksum == loaded.checksum
        again = await client.generate(turn("t"), policy="judge")
    (tmp_path / "own").mkdir()
    async with running(tmp_path / "own", job, policy="judge") as client:
        assert (await client.stats()).checksum == loaded.checksum
        own = await client.generate(turn("t"), policy="judge")
    assert own["t"].ids == shared["t"].ids == again["t"].ids
    weights.set.close()


async def test_what_no_policy_of_the_pool_asks_for_is_refused(tmp_path: Path) -> None:
    weights = Weights(tmp_path)
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    async with running(tmp_path, make_job("transformers")) as client:
        ref = weights.publish(1)
        said = await refused(invalid, client.load(ref, "stranger"))
        assert said == "'stranger' is no policy of this engine's pool: a, b, judge, small"
        assert "must be named" in await refused(invalid, own_weights(client, "a"))
        await client.load(ref, "a")
        await refused(invalid, client.load(ref, "small"))  # another model, not these weights
        assert not (await client.stats()).loaded
        await client.load(ref, "a")
        assert (await client.generate(turn("t"), version=1))["t"].ids
    weights.set.close()


async def test_turns_of_the_policy_before_are_cut_and_others_go_on(tmp_path: Path) -> None:
    """Whoever binds it waits for them first, where that can be waited for."""
    weights = Weights(tmp_path)
    slow = {"medianTokens": 1 << 19, "p99Tokens": 1 << 19, "tokensPerSecond": 500}
    async with running(tmp_path, make_job("scripted", scripted=slow)) as client:
        await client.load(weights.publish(1), "a")
        long = asyncio.create_task(client.generate(turn("t", max_tokens=LONG), version=1))
        await client.until_running()
        await client.load(weights.publish(2), "b")
        cut = (await long)["t"]
        assert cut.reason == "abort"
        assert cut.versions == [(1, 0, len(cut.ids))]
        found = await client.generate(turn("u", max_tokens=5), version=2, policy="b")
        assert len(found["u"].ids) == 5
    weights.set.close()
