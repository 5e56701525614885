"""What every engine must do with turns, asked of each over a real connection.

Updates, pauses and aborts: `test_conformance_control`.
"""

from __future__ import annotations

import asyncio
import random

import grpc
import grpc.aio
import numpy as np
import pytest
from tests.contract.engines.conftest import Serve
from tests.contract.engines.harness import Client, Weights, make_backend, turn

from flexmarl.contracts.policy import ScriptedArgs
from flexmarl.contracts.v1 import engine_pb2
from flexmarl.models.bytes_tokenizer import END, BytesTokenizer
from flexmarl.rollout.engines.base import Backend, Turn, WeightsAccess
from flexmarl.rollout.engines.scripted import ScriptedBackend


async def test_a_turn_comes_back_whole(engine: Client) -> None:
    result = (await engine.generate(turn("t", max_tokens=7)))["t"]
    assert len(result.ids) == len(result.logprobs) == 7
    assert np.isfinite(result.logprobs).all()
    assert (result.logprobs <= 0).all()
    assert result.reason == "length"
    assert result.versions == [(0, 0, 7)]


async def test_tokens_depend_on_the_seed_alone_whoever_shares_the_batch(engine: Client) -> None:
    turns = [
        turn(str(n), "ab" * (n % 7 + 1), seed=n, max_tokens=20 + n, temperature=1 + n % 3 / 2)
        for n in range(24)
    ]
    alone: dict[str, object] = {}
    for one in turns:
        alone |= await engine.generate(one)
    shuffled = random.Random(1).sample(turns, len(turns))
    together = await engine.generate(*shuffled)
    late = [
        asyncio.create_task(engine.generate(*shuffled[n : n + 6]))
        for n in range(0, len(shuffled), 6)
    ]
    staggered: dict[str, object] = {}
    for calls in await asyncio.gather(*late):
        staggered |= calls
    for id_, expected in alone.items():
        for other in (together[id_], staggered[id_]):
            assert other.ids == expected.ids  # type: ignore[attr-defined]
            np.testing.assert_allclose(other.logprobs, expected.logprobs, atol=1e-4)  # type: ignore[attr-defined]


async def test_another_seed_gives_other_tokens(engine: Client) -> None:
    results = await engine.generate(turn("a", seed=1), turn("b", seed=2), turn("c", seed=1))
    assert results["a"].ids == results["c"].ids != results["b"].ids


async def test_temperature_zero_does_not_look_at_the_seed(engine: Client) -> None:
    turns = [turn(str(n), seed=n, temperature=0, top_p=0.1 + n / 10, top_k=n) for n in range(4)]
    results = await engine.generate(*turns)
    for result in results.values():
        assert result.ids == results["0"].ids
        np.testing.assert_allclose(result.logprobs, results["0"].logprobs, atol=1e-4)


async def test_stop_tokens_end_a_turn_and_belong_to_it(engine: Client) -> None:
    whole = (await engine.generate(turn("t")))["t"].ids
    first, second = whole[12], whole[5]
    end = min(whole.index(first), whole.index(second)) + 1
    unused = next(token for token in range(256) if token not in whole)
    results = await engine.generate(
        turn("stops", stop=[unused, first, second]), turn("runs", stop=[unused])
    )
    assert results["stops"].ids == whole[:end]
    assert results["stops"].reason == "stop"
    assert results["runs"].ids == whole
    assert results["runs"].reason == "length"


async def test_each_turn_comes_back_as_soon_as_it_is_finished(engine: Client) -> None:
    lengths = [300, 3, 120, 40]
    turns = [turn(str(n), max_tokens=n) for n in lengths]
    arrivals = [[result.id for result in response.turns] async for response in engine.call(turns)]
    assert arrivals == [["3"], ["40"], ["120"], ["300"]]


async def test_turns_that_finish_together_travel_together(engine: Client) -> None:
    turns = [turn(str(n), max_tokens=5) for n in range(30)]
    sizes = [len(response.turns) async for response in engine.call(turns)]
    assert sizes == [30]


async def test_more_turns_than_places_all_get_their_turn(engine: Client) -> None:
    results = await engine.generate(*[turn(str(n), seed=n, max_tokens=3) for n in range(300)])
    assert len(results) == 300
    assert all(len(result.ids) == 3 for result in results.values())


async def test_the_context_bounds_prompts_and_turns(engine: Client, kind: str) -> None:
    context = 1 << 20 if kind == "scripted" else 4096
    result = await engine.generate(turn("fits", [65] * (context - 3), max_tokens=50))
    assert len(result["fits"].ids) == 3
    assert result["fits"].reason == "length"
    with pytest.raises(grpc.aio.AioRpcError, match=f"turn long: .*{context}") as refused:
        await engine.generate(turn("fits"), turn("long", [65] * context))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ([turn("t", [])], "turn t: prompt_ids is empty"),
        ([turn("t", [65, 261])], "turn t: .* outside the vocabulary of 261"),
        ([turn("t", [-1])], "outside the vocabulary"),
        ([turn("t", max_tokens=0)], "turn t: max_tokens is 0"),
        ([turn("t", top_p=0)], "turn t: top_p is 0.0"),
        ([turn("t", temperature=-1)], "turn t: temperature is -1"),
        ([turn("t", temperature=float("nan"))], "turn t: temperature is nan"),
        ([turn("t"), turn("t")], "same id"),
        ([], "no turns"),
        ([engine_pb2.TurnRequest(id="t", prompt_ids=b"123")], "turn t: prompt_ids is 3 bytes"),
    ],
)
async def test_a_request_that_can_never_run_is_refused_with_its_reason(
    engine: Client, turns: list[engine_pb2.TurnRequest], words: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=words) as refused:
        await engine.generate(*turns)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await engine.generate(turn("next", max_tokens=1))


async def test_stats_count_what_happens(engine: Client) -> None:
    before = await engine.stats()
    await engine.generate(turn("a", max_tokens=5), turn("b", max_tokens=7))
    await engine.generate(turn("c", max_tokens=9))
    after = await engine.stats()
    assert after.calls - before.calls == 2
    assert after.turns - before.turns == 3
    assert after.generated_tokens - before.generated_tokens == 21
    assert (after.running, after.waiting, after.outstanding_tokens) == (0, 0, 0)
    assert (after.policy, after.version, after.loaded) == ("a", 0, True)


async def test_answers_carry_an_upper_bound_of_what_is_outstanding(engine: Client) -> None:
    turns = [turn("short", max_tokens=3), turn("long", max_tokens=500)]
    bounds = [response.outstanding_tokens async for response in engine.call(turns)]
    assert 0 < bounds[0] <= 497
    assert bounds[-1] == 0


class BreakingBackend:
    """Breaks down in the middle of a turn."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self._left = 5

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def step(self) -> tuple[int, list[Turn]]:
        self._left -= 1
        if not self._left:
            raise RuntimeError("the card is on fire")
        return self._inner.step()


async def test_what_breaks_the_engine_reaches_the_callers(
    kind: str, weights: Weights, serve: Serve
) -> None:
    async with serve(BreakingBackend(make_backend(kind, weights.shm_dir))) as client:  # type: ignore[arg-type]
        await client.load(weights.publish(0))
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError, match="the card is on fire") as broken:
                await client.generate(turn("t"))
            assert broken.value.code() is grpc.StatusCode.UNKNOWN


async def test_the_models_own_eos_ends_a_turn(kind: str, weights: Weights, serve: Serve) -> None:
    if kind == "scripted":
        args = ScriptedArgs(median_tokens=8, p99_tokens=16)
        backend: Backend = ScriptedBackend(args, BytesTokenizer(), WeightsAccess(weights.shm_dir))
        eos = {END}
    else:
        eos = set(range(0, 256, 16))
        backend = make_backend(kind, weights.shm_dir, sorted(eos))
    async with serve(backend) as client:
        await client.load(weights.publish(0))
        results = await client.generate(*[turn(str(n), seed=n, max_tokens=1000) for n in range(50)])
    assert {result.reason for result in results.values()} == {"stop"}
    assert {result.ids[-1] for result in results.values()} <= eos
    assert not any(eos & set(result.ids[:-1]) for result in results.values())
    assert len({len(result.ids) for result in results.values()}) > 3
