from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from flexmarl.rollout.episode import Episode
from flexmarl.rollout.prompts import History


def echo(history: History) -> str:
    return history[-1][1].upper()


async def test_parallel_calls_are_sequences_with_seeds_of_their_own(
    make_episode: Callable[..., Episode],
) -> None:
    episode = make_episode(a=echo)
    replies = await asyncio.gather(*(episode.team["a"].chat("x") for _ in range(3)))
    assert [reply.text for reply in replies] == ["X", "X", "X"]
    assert len({id(turn.sequence) for turn in episode.turns}) == 3


async def test_turn_seeds_follow_from_the_episodes_seed(
    make_episode: Callable[..., Episode],
) -> None:
    async def seeds(seed: int) -> list[int]:
        episode = make_episode(seed, a=echo, b=echo)
        for name in "aab":
            await episode.team[name].chat("x")
        sources = (episode.team[name]._player.source for name in "ab")
        return [call.seed for source in sources for call in source.calls]  # type: ignore[union-attr]

    assert await seeds(1) == await seeds(1)
    assert len({*await seeds(1), *await seeds(2)}) == 6


async def test_a_reply_says_what_was_sampled(make_episode: Callable[..., Episode]) -> None:
    reply = await make_episode(a=echo).team["a"].chat("x")
    assert (reply.text, reply.token_ids.tolist(), reply.finish_reason) == ("X", [88, 256], "stop")
    assert reply.logprobs.tolist() == [-0.5, -1.5]
    assert reply.version == 3


async def test_a_turn_can_have_a_reward_of_its_own(make_episode: Callable[..., Episode]) -> None:
    episode = make_episode(a=echo)
    reply = await episode.team["a"].chat("x")
    episode.reward_turn(0, 0.5)
    assert reply.reward == 0.5
    episode.reward_turn(reply, 1)
    assert episode.turns[0].reply.reward == 1.0
    with pytest.raises(ValueError, match="nan"):
        episode.reward_turn(reply, math.nan)


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": 0}, {"temperature": -1}, {"top_p": 0}, {"top_p": 2}, {"top_k": -1}]
)
async def test_sampling_that_makes_no_sense_is_refused(
    make_episode: Callable[..., Episode], wrong: dict[str, float]
) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        await make_episode(a=echo).team["a"].chat("x", **wrong)  # type: ignore[arg-type]


async def test_given_sampling_goes_before_the_job_files(
    make_episode: Callable[..., Episode],
) -> None:
    agent = make_episode(a=echo).team["a"]
    await agent.chat("x", max_tokens=3, temperature=0)
    await agent.chat("x")
    first, second = (call.sampling for call in agent._player.source.calls)  # type: ignore[union-attr]
    assert (first.max_tokens, first.temperature, first.top_p) == (3, 0, 1.0)
    assert (second.max_tokens, second.temperature) == (256, 1.0)


async def test_a_call_after_the_end_is_refused(make_episode: Callable[..., Episode]) -> None:
    episode = make_episode(a=echo)
    episode.close()
    with pytest.raises(RuntimeError, match="too late"):
        await episode.team["a"].chat("x")
