"""What every engine must do where turns may come from several versions, and go on over updates."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from tests.contract.engines.conftest import Serve
from tests.contract.engines.harness import LONG, Client, Weights, make_backend, turn

from flexmarl.contracts.policy import ScriptedArgs
from flexmarl.contracts.v1 import engine_pb2
from flexmarl.models.bytes_tokenizer import BytesTokenizer
from flexmarl.rollout.engine_pool import EnginePool
from flexmarl.rollout.engines.base import WeightsAccess
from flexmarl.rollout.engines.scripted import ScriptedBackend
from flexmarl.rollout.policies import EnginePolicy, SamplingChoice, TurnCall


class Endless(BytesTokenizer):
    """No token ends a turn."""

    eos_ids: Any = ()


TOKENS = Endless()
CUT_TOKENS = 300
"""Of a turn that an update meets."""
CONTEXT = 4096
"""Of the harness's model."""


async def ask(
    client: Client, *turns: engine_pb2.TurnRequest, oldest: int, newest: int
) -> dict[str, engine_pb2.TurnResult]:
    """Id -> result, in the order in which they came."""
    request = engine_pb2.GenerateRequest(
        policy="a", version=newest, min_version=oldest, turns=turns
    )
    found: dict[str, engine_pb2.TurnResult] = {}
    async for response in client.stub.Generate(request, timeout=60):
        found |= {result.id: result for result in response.turns}
    return found


@pytest.mark.parametrize(("oldest", "newest"), [(3, 3), (3, 5), (1, 3), (1, 5)])
async def test_any_version_of_the_range_will_do(
    engine: Client, weights: Weights, oldest: int, newest: int
) -> None:
    await engine.load(weights.publish(3))
    result = (await ask(engine, turn("t", max_tokens=4), oldest=oldest, newest=newest))["t"]
    assert [(span.version, span.start, span.end) for span in result.versions] == [(3, 0, 4)]


@pytest.mark.parametrize(
    ("oldest", "newest", "code"),
    [
        (4, 5, grpc.StatusCode.FAILED_PRECONDITION),
        (1, 2, grpc.StatusCode.FAILED_PRECONDITION),
        (5, 4, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_version_outside_the_range_is_refused(
    engine: Client, weights: Weights, oldest: int, newest: int, code: grpc.StatusCode
) -> None:
    await engine.load(weights.publish(3))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await ask(engine, turn("t"), oldest=oldest, newest=newest)
    assert refused.value.code() is code


def resumed(id_: str, **changes: Any) -> engine_pb2.TurnRequest:
    made = turn(id_, **changes)
    made.resumed = 1
    return made


@pytest.mark.parametrize("said", [1, 5, 11])
async def test_a_turn_that_goes_on_says_what_it_would_have_said_uncut(
    engine: Client, said: int
) -> None:
    whole = (await engine.generate(turn("whole", seed=3, max_tokens=12)))["whole"]
    rest = turn("rest", seed=3, max_tokens=12 - said)
    rest.prompt_ids += np.array(whole.ids[:said], "<i4").tobytes()
    rest.resumed = said
    went_on = (await engine.generate(rest))["rest"]
    assert [*whole.ids[:said], *went_on.ids] == whole.ids
    assert went_on.reason == whole.reason
    np.testing.assert_allclose(went_on.logprobs, whole.logprobs[said:], rtol=1e-4, atol=1e-5)


async def test_a_turn_cannot_go_on_behind_more_than_its_prompt(engine: Client) -> None:
    rest = turn("rest")
    rest.resumed = len(rest.prompt_ids) // 4
    with pytest.raises(grpc.aio.AioRpcError, match="of the turn's behind it"):
        await engine.generate(rest)


@pytest.fixture
async def narrow(kind: str, weights: Weights, serve: Serve) -> AsyncIterator[Client]:
    """Runs two turns at a time."""
    backend: Any = make_backend(kind, weights.shm_dir)
    backend.limits = dataclasses.replace(backend.limits, max_concurrent_turns=2)
    async with serve(backend) as client:
        await client.load(weights.publish(0))
        yield client


async def test_turns_that_go_on_start_before_those_that_wait(narrow: Client) -> None:
    busy = asyncio.create_task(
        narrow.generate(turn("x", max_tokens=LONG), turn("y", max_tokens=LONG))
    )
    await narrow.until_running(2)
    new = [turn(id_, max_tokens=3) for id_ in "abc"]
    waiting = asyncio.create_task(ask(narrow, *new, oldest=0, newest=0))
    await narrow.until(lambda stats: stats.waiting == 3)
    mixed = [turn("d", max_tokens=3), *(resumed(id_, max_tokens=3) for id_ in "pqr")]
    later = asyncio.create_task(ask(narrow, *mixed, oldest=0, newest=0))
    await narrow.until(lambda stats: stats.waiting == 7)
    ended: list[str] = []
    waiting.add_done_callback(lambda _: ended.append("new"))
    await narrow.abort("x", "y")
    order = list(await later)
    assert order == ["p", "q", "r", "d"]
    await waiting
    await busy


async def test_turns_that_go_on_start_before_those_that_were_held(narrow: Client) -> None:
    await narrow.pause(engine_pb2.PauseRequest.KEEP)
    turns = [
        turn("a", max_tokens=3),
        resumed("p", max_tokens=3),
        turn("b", max_tokens=3),
        resumed("q", max_tokens=3),
    ]
    asked = asyncio.create_task(ask(narrow, *turns, oldest=0, newest=0))
    await narrow.until(lambda stats: stats.waiting == 4)
    await narrow.resume()
    assert list(await asked) == ["p", "q", "a", "b"]


async def test_a_turn_that_goes_on_can_be_aborted_while_it_waits(narrow: Client) -> None:
    busy = asyncio.create_task(
        narrow.generate(turn("x", max_tokens=LONG), turn("y", max_tokens=LONG))
    )
    await narrow.until_running(2)
    asked = asyncio.create_task(narrow.generate(resumed("p"), turn("a")))
    await narrow.until(lambda stats: stats.waiting == 2)
    await narrow.abort("p", "a")
    assert {result.reason for result in (await asked).values()} == {"abort"}
    await narrow.abort("x", "y")
    await busy
    assert (await narrow.stats()).outstanding_tokens == 0


async def test_a_workers_turn_goes_on_over_an_update_with_keys_of_the_new_weights(
    engine: Client, weights: Weights, tmp_path: Path
) -> None:
    """The rest is what the new weights say to prompt and prefix, as if they had never been cut."""
    prompt = np.asarray(TOKENS.encode("hello"), np.int32)
    choice = SamplingChoice(CUT_TOKENS, 1.0, 1.0, 0)
    begun = await engine.generate(turn("t", seed=7, max_tokens=20))
    async with EnginePool("", call_seconds=60) as pool:
        source = EnginePolicy(
            "a", 2, [f"unix://{tmp_path}/engine.sock"], TOKENS, pool, min_version=0
        )
        call = TurnCall((("user", "hello"),), prompt, choice, 7)
        newer_weights = weights.publish(1)
        running = asyncio.create_task(source.generate(call))
        await engine.until_running()
        await engine.load(newer_weights)
        answer = await running
    older, newer = answer.versions
    assert (older.version, older.start, newer.version, newer.end) == (0, 0, 1, CUT_TOKENS)
    cut = older.end
    assert 0 < cut == newer.start
    assert len(answer.token_ids) == len(answer.logprobs) == CUT_TOKENS
    assert (answer.finish_reason, answer.resumed, answer.version) == ("length", True, 0)
    assert answer.token_ids[: min(cut, 20)].tolist() == begun["t"].ids[:cut]
    ids = [*prompt.tolist(), *answer.token_ids[:cut].tolist()]
    asked = turn("u", ids, seed=7, max_tokens=CUT_TOKENS - cut)
    asked.resumed = cut
    rest = (await engine.generate(asked, version=1))["u"]
    assert answer.token_ids[cut:].tolist() == rest.ids
    np.testing.assert_allclose(answer.logprobs[cut:], rest.logprobs, atol=1e-4)


@pytest.mark.parametrize("kind", ["transformers", "deterministic"], indirect=True)
async def test_a_turn_that_goes_on_ends_with_the_context(
    engine: Client, kind: str, weights: Weights, tmp_path: Path
) -> None:
    """Not of the scripted engine, whose context is longer than a test."""
    prompt = np.full(CONTEXT - CUT_TOKENS, 65, np.int32)
    async with EnginePool("", call_seconds=60) as pool:
        source = EnginePolicy(
            "a", 1, [f"unix://{tmp_path}/engine.sock"], TOKENS, pool, min_version=0
        )
        call = TurnCall((("user", "x"),), prompt, SamplingChoice(1 << 14, 1.0, 1.0, 0), 7)
        newer_weights = weights.publish(1)
        running = asyncio.create_task(source.generate(call))
        await engine.until_running()
        await engine.load(newer_weights)
        answer = await running
    assert (len(answer.token_ids), answer.finish_reason) == (CUT_TOKENS, "length")
    assert [span.version for span in answer.versions] == [0, 1]


async def test_a_scripted_turn_is_as_long_as_if_no_update_had_cut_it(
    weights: Weights, serve: Serve
) -> None:
    args = ScriptedArgs(median_tokens=20, p99_tokens=200)
    backend = ScriptedBackend(args, BytesTokenizer(), WeightsAccess(weights.shm_dir))
    async with serve(backend) as client:
        await client.load(weights.publish(0))
        whole = await client.generate(*(turn(str(n), seed=n, max_tokens=60) for n in range(40)))
        await client.load(weights.publish(1))
        cut = {id_: result for id_, result in whole.items() if len(result.ids) > 6}
        rests = []
        for id_, result in cut.items():
            rest = turn(id_, seed=int(id_), max_tokens=54)
            rest.prompt_ids += np.array(result.ids[:6], "<i4").tobytes()
            rest.resumed = 6
            rests.append(rest)
        went_on = await client.generate(*rests, version=1)
        other = await client.generate(
            *(turn(id_, seed=int(id_), max_tokens=60) for id_ in cut), version=1
        )
    assert len(cut) > 20
    for id_, result in cut.items():
        assert 6 + len(went_on[id_].ids) == len(result.ids) == len(other[id_].ids)
        assert went_on[id_].ids == other[id_].ids[6:]
        assert went_on[id_].reason == result.reason
    assert any(other[id_].ids != result.ids for id_, result in cut.items())
