from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from flexmarl.models.bytes_tokenizer import BytesTokenizer
from flexmarl.rollout.bindings import Bindings
from flexmarl.rollout.conversation import Generated
from flexmarl.rollout.engine_pool import EnginePool
from flexmarl.rollout.policies import EnginePolicy, SamplingChoice, TurnCall, pick_engine
from flexmarl.runtime.errors import InvalidRequestError, StalePolicyError, UnavailableError

TOKENS = BytesTokenizer()


def call(text: str = "hi", seed: int = 5, max_tokens: int = 16) -> TurnCall:
    ids = np.asarray(TOKENS.encode(text), dtype=np.int32)
    return TurnCall((("user", text),), ids, SamplingChoice(max_tokens, 1.0, 0.9, 3), seed)


def policy(pool: EnginePool, *engines: str, version: int = 1) -> EnginePolicy:
    return EnginePolicy("solver", version, engines, TOKENS, pool)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def gather(*work: Coroutine[Any, Any, Generated]) -> list[Generated]:
    return await asyncio.gather(*work)


async def test_a_turn_arrives_as_asked_for_and_comes_back_whole(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    async with serve_engine(engine) as address:
        answer = await policy(pool, address).generate(call())
    (turn,) = engine.turns
    assert np.frombuffer(turn.prompt_ids, "<i4").tolist() == [*b"hi"]
    assert (turn.seed, turn.sampling.max_tokens, turn.sampling.top_k) == (5, 16, 3)
    assert list(turn.sampling.stop_token_ids) == [256]
    assert (answer.text, answer.token_ids.tolist()) == ("ok", [*b"ok", 256])
    assert answer.logprobs.tolist() == [-0.5] * 3
    assert TOKENS.decode(answer.token_ids.tolist()) == answer.text


async def test_turns_pending_at_the_same_moment_travel_in_one_call(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    async with serve_engine(engine) as address:
        source = policy(pool, address)
        await gather(*(source.generate(call(f"{n}")) for n in range(20)))
        assert [len(request.turns) for request in engine.requests] == [20]
        assert len({turn.id for turn in engine.turns}) == 20
        await source.generate(call())
    assert len(engine.requests) == 2


async def test_a_short_turn_does_not_wait_for_a_long_one(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine, release = small_engine(), asyncio.Event()

    async def wait(prompt: str) -> None:
        if prompt == "long":
            await release.wait()

    engine.wait = wait
    async with serve_engine(engine) as address:
        source = policy(pool, address)
        async with asyncio.TaskGroup() as group:
            long = group.create_task(source.generate(call("long")))
            await source.generate(call("short"))
            assert not long.done()
            release.set()


async def test_a_cancelled_turn_is_aborted_and_leaves_the_others_alone(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine, release = small_engine(), asyncio.Event()
    engine.wait = lambda _: release.wait()
    async with serve_engine(engine) as address:
        source = policy(pool, address)
        gone = asyncio.ensure_future(source.generate(call("gone")))
        kept = asyncio.ensure_future(source.generate(call("kept")))
        await until(lambda: bool(engine.requests))
        gone.cancel()
        await until(lambda: bool(engine.aborted))
        release.set()
        assert (await kept).text == "ok"
    assert engine.aborted == [engine.turns[0].id]
    assert pool.client(address).outstanding <= 7


async def test_a_turn_that_is_cancelled_as_the_worker_ends_leaves_nothing_behind(
    small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    engine.wait = lambda _: asyncio.Event().wait()
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(failure))
    async with serve_engine(engine) as address:
        async with EnginePool("secret", call_seconds=30) as pool:
            gone = asyncio.ensure_future(policy(pool, address).generate(call()))
            await until(lambda: bool(engine.requests))
            gone.cancel()
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
    assert gone.cancelled()
    assert failures == []


async def test_a_restarted_engine_gets_the_same_turn_again(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    before, after = small_engine(), small_engine()
    before.wait = lambda _: asyncio.Event().wait()
    async with serve_engine(before) as address:
        answer = asyncio.ensure_future(policy(pool, address).generate(call(seed=77)))
        await until(lambda: bool(before.requests))
    await asyncio.sleep(0.1)
    async with serve_engine(after):
        assert (await answer).text == "ok"
    assert [turn.seed for turn in after.turns] == [77]


async def test_an_engine_that_has_yet_to_load_is_waited_for(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine(version=1)
    engine.loaded = False
    async with serve_engine(engine) as address:
        answer = asyncio.ensure_future(policy(pool, address, version=2).generate(call()))
        await until(lambda: len(engine.requests) >= 2)
        engine.loaded = True
        await until(lambda: len(engine.requests) >= 4)
        engine.version = 2
        assert (await answer).version == 2


async def test_an_engine_that_is_ahead_makes_the_turn_stale(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine(version=3)
    async with serve_engine(engine) as address:
        with pytest.raises(StalePolicyError, match="version 3"):
            await policy(pool, address, version=2).generate(call())
    assert len(engine.requests) == 1


async def test_a_turn_aborted_for_newer_weights_is_stale(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    engine.finish = "abort"

    async def load(prompt: str) -> None:
        engine.version = 2

    engine.wait = load
    async with serve_engine(engine) as address:
        with pytest.raises(StalePolicyError):
            await policy(pool, address).generate(call())


async def test_an_aborted_turn_is_asked_for_again_at_the_same_version(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    engine.finish = "abort"

    async def once(prompt: str) -> None:
        engine.finish = "abort" if len(engine.requests) == 1 else "stop"

    engine.wait = once
    async with serve_engine(engine) as address:
        assert (await policy(pool, address).generate(call())).finish_reason == "stop"
    assert [request.version for request in engine.requests] == [1, 1]


async def test_tokens_of_another_version_are_refused(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    engine.answered_version = 2
    async with serve_engine(engine) as address:
        with pytest.raises(StalePolicyError, match="wanted 1"):
            await policy(pool, address).generate(call())


async def test_one_impossible_turn_fails_alone(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    async with serve_engine(engine) as address:
        source = policy(pool, address)
        answers = await asyncio.gather(
            *(source.generate(call(text)) for text in ("a", "x" * 10_001, "b")),
            return_exceptions=True,
        )
    assert isinstance(answers[1], InvalidRequestError)
    assert [isinstance(answer, Generated) for answer in answers] == [True, False, True]


async def test_work_goes_to_the_engine_that_has_least(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    first, second = small_engine(), small_engine()
    async with serve_engine(first, "a") as one, serve_engine(second, "b") as two:
        source = policy(pool, one, two)
        await gather(*(source.generate(call(f"{n}")) for n in range(10)))
    assert (len(first.turns), len(second.turns)) == (5, 5)


async def test_sessions_leave_the_engine_of_their_prefix_once_it_has_much_more_to_do(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    first, second = small_engine(), small_engine()
    async with serve_engine(first, "a") as one, serve_engine(second, "b") as two:
        source = policy(pool, one, two)
        sessions = [call(f"{n}", max_tokens=256) for n in range(16)]
        for session in sessions:
            session.engine = one
        await gather(*(source.generate(session) for session in sessions))
    assert len(first.turns) > len(second.turns) >= 6


async def test_one_long_context_weighs_more_than_ten_short_ones(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    first, second, release = small_engine(), small_engine(), asyncio.Event()
    first.wait = second.wait = lambda _: release.wait()
    async with serve_engine(first, "a") as one, serve_engine(second, "b") as two:
        async with asyncio.TaskGroup() as group:
            group.create_task(policy(pool, one).generate(call("x" * 9000)))
            for n in range(10):
                group.create_task(policy(pool, two).generate(call(f"{n}", max_tokens=64)))
            await until(lambda: len(first.turns) == 1 and len(second.turns) == 10)
            group.create_task(policy(pool, one, two).generate(call()))
            await until(lambda: len(second.turns) == 11)
            release.set()
        assert [pool.client(address).load <= 7 for address in (one, two)] == [True, True]


async def test_an_engine_that_aborts_every_turn_is_unavailable_in_the_end(
    small_engine: Any, serve_engine: Any
) -> None:
    engine = small_engine()
    engine.finish = "abort"
    async with serve_engine(engine) as address, EnginePool("secret", 5, retry_seconds=0.3) as pool:
        with pytest.raises(UnavailableError, match="aborted the turn"):
            await policy(pool, address).generate(call())
    assert len(engine.turns) > 1


async def test_a_dead_engines_turns_go_to_the_other(
    pool: EnginePool, small_engine: Any, serve_engine: Any, sockets: Any
) -> None:
    engine = small_engine()
    async with serve_engine(engine, "b") as alive:
        source = policy(pool, f"unix://{sockets}/dead.sock", alive)
        answers = await gather(*(source.generate(call(f"{n}")) for n in range(4)))
    assert [answer.engine for answer in answers] == [alive] * 4


async def test_an_engine_that_stays_away_is_unavailable_in_the_end(sockets: Any) -> None:
    async with EnginePool("", call_seconds=5, retry_seconds=0.3) as pool:
        with pytest.raises(UnavailableError, match=r"gone\.sock"):
            await policy(pool, f"unix://{sockets}/gone.sock").generate(call())


@pytest.mark.parametrize(
    ("loads", "prefer", "picked"),
    [
        ({"a": 5, "b": 3}, "", "b"),
        ({"a": 500, "b": 3}, "a", "a"),
        ({"a": 600, "b": 3}, "a", "b"),
        ({"a": 5, "b": 3}, "c", "b"),
    ],
)
def test_a_prefix_is_worth_a_margin(loads: dict[str, int], prefer: str, picked: str) -> None:
    assert pick_engine(loads, prefer) == picked


async def test_one_engine_more_than_are_known_is_asked_while_all_others_are_busy(
    pool: EnginePool, small_engine: Any, serve_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flexmarl.rollout.engine_pool.MOST_CLIENTS", 1)
    busy, other, release = small_engine(), small_engine(), asyncio.Event()
    busy.wait = lambda _: release.wait()
    async with serve_engine(busy, "b") as first, serve_engine(other, "o") as second:
        async with asyncio.TaskGroup() as group:
            long = group.create_task(policy(pool, first).generate(call()))
            await until(lambda: len(busy.turns) == 1)
            assert (await policy(pool, second).generate(call())).text == "ok"
            release.set()
        assert (await long).text == "ok"


async def test_turns_come_to_engines_that_are_ready_only_since_the_group_was_issued(
    pool: EnginePool, small_engine: Any, serve_engine: Any
) -> None:
    first, second, release = small_engine(), small_engine(), asyncio.Event()
    first.wait = second.wait = lambda _: release.wait()
    async with serve_engine(first, "f") as one, serve_engine(second, "s") as other:
        bindings = Bindings()
        source = EnginePolicy("solver", 1, [one], TOKENS, pool, bindings=bindings)
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(source.generate(call()))
            await until(lambda: len(first.turns) == 2)
            bindings.tell((1, 1), {"solver": [one, other]})
            for _ in range(2):
                group.create_task(source.generate(call()))
            await until(lambda: len(second.turns) == 2)
            release.set()
        bindings.tell((1, 2), {})  # the one that was named with the group is tried on
        assert (await source.generate(call())).engine == one
