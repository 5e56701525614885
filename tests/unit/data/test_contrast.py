import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.data.contrast import distances


def test_each_reward_is_as_far_as_it_is_from_the_mean() -> None:
    assert distances([1, 0, 0, 1]) == [0.5, -0.5, -0.5, 0.5]


@pytest.mark.parametrize("rewards", [[], [3.0], [0.1 + 0.2, 0.3], [1e9, 1e9 + 0.5], [2.0] * 3])
def test_rewards_that_agree_up_to_rounding_tell_nothing(rewards: list[float]) -> None:
    assert distances(rewards) == [0.0] * len(rewards)


@given(st.lists(st.floats(-100, 100), max_size=16))
def test_distances_add_up_to_nothing(rewards: list[float]) -> None:
    assert math.fsum(distances(rewards)) == pytest.approx(0, abs=1e-12)
