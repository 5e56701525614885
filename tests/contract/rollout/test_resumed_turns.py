"""Turns that a weight update cuts: what the worker keeps of them and what it asks for next."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from flexmarl.experience.samples import VersionSpan
from flexmarl.models.bytes_tokenizer import BytesTokenizer
from flexmarl.rollout.engine_pool import EnginePool
from flexmarl.rollout.partial import BadAnswerError
from flexmarl.rollout.policies import EnginePolicy, SamplingChoice, TurnCall
from flexmarl.runtime.errors import StalePolicyError, UnavailableError

TOKENS = BytesTokenizer()


def call(max_tokens: int = 16) -> TurnCall:
    ids = np.asarray(TOKENS.encode("hi"), dtype=np.int32)
    return TurnCall((("user", "hi"),), ids, SamplingChoice(max_tokens, 1.0, 0.9, 3), 5)


def policy(pool: EnginePool, *engines: str, oldest: int | None = 1, newest: int) -> EnginePolicy:
    return EnginePolicy("solver", newest, engines, TOKENS, pool, min_version=oldest)


async def test_a_cut_turn_goes_on_with_what_it_has(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    engine.cuts = [2, 0, 3]
    engine.say = lambda prompt: "abcdefgh"[len(prompt) - 2 :]
    async with serve_engine(engine) as address:
        answer = await policy(pool, address, newest=5).generate(call())
    assert answer.text == "abcdefgh"
    assert answer.token_ids.tolist() == [*b"abcdefgh", 256]
    assert answer.logprobs.tolist() == [-0.5] * 9
    assert answer.finish_reason == "stop"
    assert answer.versions == (VersionSpan(1, 0, 2), VersionSpan(3, 2, 5), VersionSpan(4, 5, 9))
    assert (answer.version, answer.resumed) == (1, True)
    assert (answer.prompt_tokens, answer.sampled_tokens) == (2, 9)
    prompts = [TOKENS.decode(np.frombuffer(t.prompt_ids, "<i4").tolist()) for t in engine.turns]
    assert prompts == ["hi", "hiab", "hiab", "hiabcde"]
    assert [turn.resumed for turn in engine.turns] == [0, 2, 2, 5]
    assert [turn.sampling.max_tokens for turn in engine.turns] == [16, 14, 14, 11]
    assert {turn.seed for turn in engine.turns} == {5}
    assert {(r.version, r.min_version) for r in engine.requests} == {(5, 1)}


async def test_at_one_version_alone_a_cut_turn_is_sampled_again(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    engine.cuts = [2]
    async with serve_engine(engine) as address:
        with pytest.raises(StalePolicyError):
            await policy(pool, address, oldest=None, newest=1).generate(call())
    assert not any(request.HasField("min_version") for request in engine.requests)
    assert not any(turn.resumed for turn in engine.turns)


async def test_a_turn_cut_beyond_its_last_version_is_void(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine(version=2)
    engine.cuts = [1]
    async with serve_engine(engine) as address:
        with pytest.raises(StalePolicyError, match="version 3"):
            await policy(pool, address, newest=2).generate(call())


async def test_a_turn_that_had_ended_is_not_asked_for_again(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    engine.cuts = [3]  # "ok" and the end
    async with serve_engine(engine) as address:
        answer = await policy(pool, address, newest=2).generate(call())
    assert (answer.text, answer.finish_reason, answer.resumed) == ("ok", "stop", False)
    assert len(engine.turns) == 1


async def test_max_tokens_hold_over_updates(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    engine.cuts = [3]
    engine.say = lambda _: "abcdefgh"
    async with serve_engine(engine) as address:
        answer = await policy(pool, address, newest=2).generate(call(max_tokens=5))
    assert (answer.text, answer.finish_reason) == ("abcab", "length")


async def test_an_older_engine_than_the_route_allows_is_waited_for(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine(version=1)
    async with serve_engine(engine) as address:
        answer = asyncio.ensure_future(policy(pool, address, oldest=2, newest=4).generate(call()))
        async with asyncio.timeout(60):
            while len(engine.requests) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        engine.version = 3
        assert (await answer).version == 3


async def test_tokens_older_than_the_route_allows_are_refused(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine(version=2)
    engine.answered_version = 1
    async with serve_engine(engine) as address:
        with pytest.raises(StalePolicyError, match="version 1, wanted 2 to 3"):
            await policy(pool, address, oldest=2, newest=3).generate(call())


async def test_waiting_for_engines_starts_anew_with_every_part(
    small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    engine.cuts = [1] * 8
    engine.say = lambda _: "x" * 20
    async with EnginePool("secret", 5, retry_seconds=0.1) as pool, serve_engine(engine) as address:
        answer = await policy(pool, address, newest=9).generate(call())
    assert len(answer.versions) == 9


async def test_an_engine_that_cuts_every_turn_before_its_first_token_is_unavailable_in_the_end(
    small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    engine.cuts = [0] * 100
    async with EnginePool("secret", 5, retry_seconds=0.2) as pool, serve_engine(engine) as address:
        with pytest.raises(UnavailableError, match="aborted the turn"):
            await policy(pool, address, newest=200).generate(call())


async def test_logprobs_that_are_no_numbers_are_the_engines_fault_and_not_asked_for_again(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    engine.logprob = float("nan")
    async with serve_engine(engine) as address:
        with pytest.raises(BadAnswerError, match="'solver': log-probs that are not finite"):
            await policy(pool, address, newest=1).generate(call())
    assert len(engine.turns) == 1
