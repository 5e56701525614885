from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.contracts.pipeline import OverlongSpec
from flexmarl.models.bytes_tokenizer import BytesTokenizer
from flexmarl.rollout.conversation import Generated, Turn, TurnInfo, make_turn
from flexmarl.rollout.shaping import TrainedRewards, overlong_penalty

# DAPO, equation 13, with L_max = 20,480, L_cache = 4,096.
DAPO = OverlongSpec(buffer=4096)


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    [(1, 0.0), (16_384, 0.0), (17_408, 0.25), (18_432, 0.5), (20_480, 1.0), (20_481, 1.0)],
)
def test_the_three_pieces_of_dapo(tokens: int, penalty: float) -> None:
    assert overlong_penalty(tokens, 20_480, DAPO) == penalty


def test_the_penalty_scales_the_whole_function() -> None:
    assert overlong_penalty(18_432, 20_480, OverlongSpec(buffer=4096, penalty=0.3)) == 0.15


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000))
def test_longer_never_costs_less_and_never_more_than_all(
    tokens: int, max_tokens: int, buffer: int
) -> None:
    overlong = OverlongSpec(buffer=buffer, penalty=2.0)
    here = overlong_penalty(tokens, max_tokens, overlong)
    assert 0 <= here <= overlong_penalty(tokens + 1, max_tokens, overlong) <= 2.0
    assert overlong_penalty(max_tokens, max_tokens, overlong) == 2.0


@pytest.fixture
def turn(make_generated: Callable[..., Generated]) -> Callable[..., Turn]:
    def make(agent: str, tokens: int, reward: float | None = None, ends: str = "stop") -> Turn:
        said = make_generated(BytesTokenizer(), [65] * tokens, ends)
        made = make_turn((("user", "x"),), said, TurnInfo(0, agent, agent, 1.0, 20))
        made.reply.reward = reward
        return made

    return make


OVERLONG = OverlongSpec(buffer=10, penalty=1.0)


def test_an_agent_pays_for_its_worst_turn_and_nobody_elses(turn: Callable[..., Turn]) -> None:
    turns = [turn("a", 12), turn("a", 15), turn("a", 3), turn("b", 20), turn("c", 9)]
    rewards = TrainedRewards({"a": 1.0, "b": 1.0, "c": 0.25, "d": 1.0}, turns, OVERLONG)
    assert [rewards.of_agent(agent) for agent in "abcd"] == [0.5, 0.0, 0.25, 1.0]


def test_a_turn_with_its_own_reward_pays_for_itself_alone(turn: Callable[..., Turn]) -> None:
    own, other = turn("a", 20, reward=0.5), turn("a", 12)
    rewards = TrainedRewards({"a": 1.0}, [own, other], OVERLONG)
    assert rewards.of_turn(own) == -0.5
    assert rewards.of_turn(other) is None
    assert rewards.of_agent("a") == 0.8
    assert own.reply.reward == 0.5  # what is reported


def test_a_turn_that_the_context_cuts_pays_all_of_it(turn: Callable[..., Turn]) -> None:
    """However far from maxTokens: its model can say no more."""
    own = turn("b", 3, reward=0.5, ends="length")
    rewards = TrainedRewards({"a": 1.0, "b": 1.0}, [turn("a", 3, ends="length"), own], OVERLONG)
    assert rewards.of_agent("a") == 0.0
    assert rewards.of_turn(own) == -0.5
    assert rewards.of_agent("b") == 1.0


def test_what_has_no_reward_gets_none(turn: Callable[..., Turn]) -> None:
    rewards = TrainedRewards({"a": None}, [turn("a", 20), turn("b", 20)], OVERLONG)
    assert (rewards.of_agent("a"), rewards.of_agent("b")) == (None, None)


def test_without_shaping_rewards_are_as_reported(turn: Callable[..., Turn]) -> None:
    own = turn("a", 20, reward=0.5)
    rewards = TrainedRewards({"a": 1.0}, [own, turn("a", 20)], None)
    assert (rewards.of_agent("a"), rewards.of_turn(own)) == (1.0, 0.5)
