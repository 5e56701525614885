"""What every engine must do when weights change, and when it is paused or turns are aborted."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

import grpc
import grpc.aio
import pytest
from tests.contract.engines.conftest import Serve
from tests.contract.engines.harness import LONG, Client, Weights, make_backend, turn

from flexmarl.contracts.v1 import engine_pb2, weights_pb2
from flexmarl.rollout.engines.base import Backend

ABORT, WAIT, KEEP = (
    engine_pb2.PauseRequest.ABORT,
    engine_pb2.PauseRequest.WAIT,
    engine_pb2.PauseRequest.KEEP,
)


async def check_update_takes_effect(client: Client, weights: Weights) -> None:
    """The same prompts before and after an update: other tokens or log-probs, all of the new
    version; what the engine says of its weights is true of its own tensors."""
    same = [turn("sampled", seed=3), turn("greedy", temperature=0)]
    before = await client.generate(*same, version=0)
    ref = weights.publish(1)
    loaded = await client.load(ref)
    assert (loaded.version, loaded.checksum, loaded.transport) == (1, ref.checksum, "shm")
    after = await client.generate(*same, version=1)
    for id_ in before:
        assert before[id_].logprobs.tolist() != after[id_].logprobs.tolist(), id_
        assert after[id_].versions == [(1, 0, len(after[id_].ids))]


@pytest.mark.parametrize(("policy", "version"), [("a", 1), ("b", 0)])
async def test_another_policy_or_version_than_the_loaded_one_is_refused(
    engine: Client, policy: str, version: int
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="loaded is a v0") as refused:
        await engine.generate(turn("t"), policy=policy, version=version)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_before_the_first_weights_nothing_is_generated(
    kind: str, weights: Weights, serve: Serve
) -> None:
    async with serve(make_backend(kind, weights.shm_dir)) as client:
        assert not (await client.stats()).loaded
        with pytest.raises(grpc.aio.AioRpcError, match="no weights are loaded"):
            await client.generate(turn("t"))


async def test_an_update_takes_effect_on_prompts_seen_before(
    engine: Client, weights: Weights
) -> None:
    await check_update_takes_effect(engine, weights)


class SkippingBackend:
    """A mutant: says that it took the version, and keeps its old weights."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self._said = ""

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def load(self, ref: weights_pb2.WeightsRef, executor: Executor) -> tuple[float, str]:
        first = not self._said
        self._said = ref.checksum
        return await self._inner.load(ref, executor) if first else (0.0, "shm")

    def checksum(self) -> str:
        return self._said


class HonestSkippingBackend(SkippingBackend):
    """A mutant that skips the update but computes its checksum from its own tensors."""

    def checksum(self) -> str:
        return self._inner.checksum()


@pytest.mark.parametrize("mutant", [SkippingBackend, HonestSkippingBackend])
async def test_an_engine_that_skips_an_update_fails_the_suite(
    mutant: type[SkippingBackend], kind: str, weights: Weights, serve: Serve
) -> None:
    async with serve(mutant(make_backend(kind, weights.shm_dir))) as client:  # type: ignore[arg-type]
        await client.load(weights.publish(0))
        with pytest.raises(AssertionError):
            await check_update_takes_effect(client, weights)


async def test_turns_in_flight_at_an_update_come_back_with_what_they_have(
    engine: Client, weights: Weights
) -> None:
    turns = [turn(str(n), max_tokens=LONG) for n in range(100)]
    running = asyncio.create_task(engine.generate(*turns))
    await engine.until_running(50)
    await engine.load(weights.publish(1))  # waits for no place and no turn
    partial = await running
    assert {result.reason for result in partial.values()} == {"abort"}
    assert len(partial) == 100
    begun = [result for result in partial.values() if result.ids]
    assert len(begun) >= 50
    for result in begun:
        assert len(result.ids) == len(result.logprobs) < LONG
        assert result.versions == [(0, 0, len(result.ids))]
    assert (await engine.stats()).outstanding_tokens == 0


async def test_after_an_update_nothing_of_the_older_weights_is_left(
    kind: str, weights: Weights, serve: Serve
) -> None:
    heard = turn("heard", "what was said before ", seed=4)
    longer = turn("longer", "what was said before and goes on", seed=4)
    async with serve(make_backend(kind, weights.shm_dir)) as updated:
        await updated.load(weights.publish(0))
        await updated.generate(heard)
        await updated.load(weights.publish(1))
        found = [await updated.generate(one, version=1) for one in (heard, longer)]
    async with serve(make_backend(kind, weights.shm_dir)) as fresh:
        await fresh.load(weights.publish(1))
        expected = [await fresh.generate(one, version=1) for one in (heard, longer)]
    for one, other in zip(found, expected, strict=True):
        for id_, result in other.items():
            assert one[id_].ids == result.ids
            assert one[id_].logprobs.tolist() == result.logprobs.tolist()


async def test_the_same_version_again_disturbs_no_turn(engine: Client, weights: Weights) -> None:
    running = asyncio.create_task(engine.generate(turn("t", max_tokens=500)))
    await engine.until_running()
    stats = await engine.stats()
    ref = weights_pb2.WeightsRef(set="job.a", version=0, checksum=stats.checksum)
    assert (await engine.load(ref)).checksum == stats.checksum
    assert (await running)["t"].reason == "length"


async def test_a_failed_update_is_told_and_the_next_one_works(
    engine: Client, weights: Weights
) -> None:
    good = weights.publish(1)
    bad = weights_pb2.WeightsRef(set="job.a", version=1, checksum="0" * 32)
    with pytest.raises(grpc.aio.AioRpcError, match="checksum"):
        await engine.load(bad)
    with pytest.raises(grpc.aio.AioRpcError, match="no weights are loaded"):
        await engine.generate(turn("t"))
    missing = weights_pb2.WeightsRef(set="job.gone", version=1, checksum=good.checksum)
    with pytest.raises(grpc.aio.AioRpcError, match=r"job\.gone"):
        await engine.load(missing)
    assert (await engine.load(good)).checksum == good.checksum
    assert (await engine.generate(turn("t"), version=1))["t"].reason == "length"


async def test_abort_returns_what_was_sampled_and_leaves_the_others(engine: Client) -> None:
    reference = (await engine.generate(turn("whole", seed=5, max_tokens=400)))["whole"]
    stays = asyncio.create_task(engine.generate(turn("stays", seed=5, max_tokens=400)))
    goes = asyncio.create_task(engine.generate(turn("goes", seed=5, max_tokens=LONG)))
    await engine.until_running(2)
    await engine.abort("goes", "unknown")
    partial = (await goes)["goes"]
    assert partial.reason == "abort"
    assert 0 < len(partial.ids) == len(partial.logprobs) < LONG
    shared = min(len(partial.ids), 400)
    assert partial.ids[:shared] == reference.ids[:shared]
    whole = (await stays)["stays"]
    assert whole.ids == reference.ids
    assert whole.reason == "length"


async def test_a_call_that_is_cancelled_takes_its_turns_along(engine: Client) -> None:
    other = asyncio.create_task(engine.generate(turn("other", max_tokens=600)))
    turns = [turn(str(n), max_tokens=LONG) for n in range(100)]
    call = asyncio.create_task(engine.generate(*turns))
    await engine.until_running(2)
    call.cancel()
    await engine.until(lambda stats: stats.running + stats.waiting <= 1)
    assert (await other)["other"].reason == "length"
    assert (await engine.stats()).outstanding_tokens == 0


async def test_a_turn_asked_for_again_replaces_the_older_one(engine: Client) -> None:
    older = asyncio.create_task(engine.generate(turn("t", max_tokens=LONG)))
    await engine.until_running()
    newer = await engine.generate(turn("t", max_tokens=5))
    assert newer["t"].reason == "length"
    assert (await older)["t"].reason == "abort"


async def test_pause_abort_returns_every_unfinished_turn(engine: Client) -> None:
    turns = [turn(str(n), max_tokens=LONG) for n in range(100)]
    running = asyncio.create_task(engine.generate(*turns))
    await engine.until_running(10)
    await engine.pause(ABORT)
    results = await running
    assert len(results) == 100
    assert {result.reason for result in results.values()} == {"abort"}
    stats = await engine.stats()
    assert (stats.running, stats.waiting, stats.outstanding_tokens) == (0, 0, 0)
    await engine.resume()
    assert await engine.generate(turn("t"))


async def test_pause_wait_lets_unfinished_turns_end_and_holds_new_ones(engine: Client) -> None:
    running = asyncio.create_task(engine.generate(turn("t", max_tokens=400)))
    await engine.until_running()
    pause = asyncio.create_task(engine.pause(WAIT))
    await pause
    assert (await engine.stats()).running == 0
    held = asyncio.create_task(engine.generate(turn("held", max_tokens=2)))
    await engine.until(lambda stats: stats.waiting == 1)
    assert (await running)["t"].reason == "length"
    assert not held.done()
    await engine.resume()
    assert (await held)["held"].reason == "length"


async def test_pause_keep_changes_no_token(engine: Client) -> None:
    whole = (await engine.generate(turn("t", max_tokens=300)))["t"]
    running = asyncio.create_task(engine.generate(turn("t", max_tokens=300)))
    await engine.until_running()
    await engine.pause(KEEP)
    stood = (await engine.stats()).generated_tokens
    await asyncio.sleep(0.05)
    assert (await engine.stats()).generated_tokens == stood
    await engine.resume()
    result = (await running)["t"]
    assert result.ids == whole.ids
    assert result.versions == [(0, 0, 300)]


async def test_an_update_under_pause_keep_is_recorded_in_the_spans(
    engine: Client, weights: Weights
) -> None:
    running = asyncio.create_task(engine.generate(turn("t", max_tokens=1000)))
    await engine.until_running()
    await engine.pause(KEEP)
    await engine.load(weights.publish(1))
    await engine.resume()
    result = (await running)["t"]
    (older, start, border), (newer, again, end) = result.versions
    assert (older, newer, start, end) == (0, 1, 0, len(result.ids))
    assert 0 < border == again < end
    assert result.reason == "length"


async def test_another_policy_under_pause_keep_aborts_what_was_kept(
    engine: Client, weights: Weights
) -> None:
    running = asyncio.create_task(engine.generate(turn("t", max_tokens=LONG)))
    await engine.until_running()
    await engine.pause(KEEP)
    await engine.load(weights.publish(1), policy="b")
    assert (await running)["t"].reason == "abort"
    await engine.resume()
    assert (await engine.generate(turn("t"), policy="b", version=1))["t"].reason == "length"


async def test_an_incarnation_that_was_replaced_loads_nothing(
    engine: Client, weights: Weights
) -> None:
    async def load(version: int, incarnation: int) -> None:
        ref = weights.publish(version)
        request = engine_pb2.LoadWeightsRequest(policy="a", weights=ref, incarnation=incarnation)
        await engine.stub.LoadWeights(request, timeout=60)

    await load(1, incarnation=3)
    with pytest.raises(grpc.aio.AioRpcError, match="incarnation 3") as refused:
        await load(2, incarnation=2)
    assert refused.value.code() is grpc.StatusCode.ABORTED
    stats = await engine.stats()
    assert (stats.version, stats.incarnation) == (1, 3)
    await load(2, incarnation=3)
    await load(3, incarnation=4)
    stats = await engine.stats()
    assert (stats.version, stats.incarnation) == (3, 4)
