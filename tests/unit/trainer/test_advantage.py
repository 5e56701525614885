import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.contracts.policy import Algorithm
from flexmarl.runtime.errors import InvalidRequestError
from flexmarl.trainer.advantage import deviation, generalized_advantages, group_advantages

TRAINED = [algorithm for algorithm in Algorithm if algorithm is not Algorithm.NONE]
REWARDS = st.lists(st.floats(-100, 100), min_size=2, max_size=16)


@pytest.mark.parametrize(
    ("algorithm", "size"),
    [(Algorithm.GRPO, 0.8660), (Algorithm.DR_GRPO, 0.5), (Algorithm.RLOO, 0.6667)],
)
def test_reference_values(algorithm: Algorithm, size: float) -> None:
    expected = [size, -size, -size, size]
    assert group_advantages([1, 0, 0, 1], algorithm) == pytest.approx(expected, abs=5e-5)


def test_reinforce_pp_leaves_the_deviation_to_the_step() -> None:
    assert group_advantages([1, 0, 0, 1], Algorithm.REINFORCE_PP) == [0.5, -0.5, -0.5, 0.5]
    assert deviation([0.5, -0.5, -0.5, 0.5, 0, 0]) == pytest.approx((1 / 6) ** 0.5)
    assert deviation([]) == deviation([0.0, 0.0]) == 0


def test_generalized_advantages_reference_value() -> None:
    _, returns = generalized_advantages([1, 2, 3], [0, 0, 0], gamma=0.5, lam=1)
    assert returns == [2.75, 3.5, 3]


def test_lambda_zero_is_the_one_step_error() -> None:
    advantages, returns = generalized_advantages([1, 2], [0.5, 4], gamma=0.5, lam=0)
    assert advantages == [1 + 0.5 * 4 - 0.5, 2 - 4]
    assert returns == [3, 2]


@pytest.mark.parametrize("algorithm", TRAINED)
def test_unscorable_episodes_are_excluded_not_zero(algorithm: Algorithm) -> None:
    with_gaps = group_advantages([None, 1, 0, None, 0, 1], algorithm)
    assert with_gaps[0] is None
    assert with_gaps[3] is None
    assert [a for a in with_gaps if a is not None] == group_advantages([1, 0, 0, 1], algorithm)


@pytest.mark.parametrize("algorithm", TRAINED)
@pytest.mark.parametrize("rewards", [[1.0], [None, 3.0], [0.1] * 3, [2.0, None, 2.0], [1e9] * 4])
def test_agreement_and_single_episodes_teach_nothing(
    algorithm: Algorithm, rewards: list[float | None]
) -> None:
    assert all(a in (None, 0.0) for a in group_advantages(rewards, algorithm))


def test_rounding_noise_is_no_signal() -> None:
    assert group_advantages([0.1 + 0.2, 0.3, 0.3], Algorithm.GRPO) == [0, 0, 0]


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(reward: float) -> None:
    with pytest.raises(InvalidRequestError, match="finite"):
        group_advantages([0.0, reward])


@given(REWARDS, st.sampled_from(TRAINED))
def test_advantages_sum_to_zero(rewards: list[float], algorithm: Algorithm) -> None:
    advantages = [a for a in group_advantages(rewards, algorithm) if a is not None]
    assert math.fsum(advantages) == pytest.approx(0, abs=1e-6)


@given(REWARDS, st.sampled_from(TRAINED), st.randoms(use_true_random=False))
def test_order_does_not_matter(rewards: list[float], algorithm: Algorithm, random: object) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)  # type: ignore[attr-defined]
    advantages = group_advantages(rewards, algorithm)
    shuffled = group_advantages([rewards[at] for at in order], algorithm)
    assert shuffled == [advantages[at] for at in order]


@given(REWARDS, st.floats(-50, 50), st.sampled_from(TRAINED))
def test_a_constant_added_to_all_rewards_changes_nothing(
    rewards: list[float], shift: float, algorithm: Algorithm
) -> None:
    rewards = [round(reward, 3) for reward in rewards]
    shifted = [reward + round(shift, 3) for reward in rewards]
    assert group_advantages(shifted, algorithm) == pytest.approx(
        group_advantages(rewards, algorithm), abs=1e-6
    )
