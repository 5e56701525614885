"""Advantages: how much better each episode of a group did than its peers. Pure, no tensors.

All estimators compare an agent with itself: rewards are normalised per agent over the scored
episodes of one group, never over agents, groups or the step. An episode without a reward (None:
unscorable) neither gets an advantage nor enters a mean. Fewer than two scored episodes, or scored
episodes that agree, teach nothing: their advantages are 0.

`reinforce-pp` is REINFORCE++ with the group's mean as baseline (arXiv 2501.03262): what is left is
whitened over the step, so it is the one estimator that needs all groups before the first gradient.
Whitened over episodes, each counted once, and per agent: that keeps the mean at 0, groups without
contrast at 0 and the rule above. Known implementations whiten over tokens, where a long episode
counts more and the shift of the mean trains groups without contrast; that is left out.
"""

import math
from collections.abc import Callable, Sequence

from flexmarl.contracts.policy import Algorithm
from flexmarl.data.contrast import distances
from flexmarl.runtime.errors import InvalidRequestError

WHOLE_STEP = frozenset({Algorithm.REINFORCE_PP})
"""Estimators with statistics of the whole step: nothing can be folded before all of it came."""


def group_advantages(
    rewards: Sequence[float | None], algorithm: Algorithm = Algorithm.GRPO
) -> list[float | None]:
    """One advantage per reward, None where the reward is None.

    `grpo`: distance from the mean in sample standard deviations (ddof 1). `dr-grpo`: distance from
    the mean. `rloo`: distance from the mean of the others. `reinforce-pp`: distance from the mean,
    to be divided by the step's `deviation`. InvalidRequestError: a reward that is no finite number.
    """
    scored = [reward for reward in rewards if reward is not None]
    for reward in scored:
        if not math.isfinite(reward):
            raise InvalidRequestError(f"reward {reward} is not a finite number")
    away = distances(scored)
    scale = _SCALES[algorithm](away) if any(away) else 0.0
    advantages = (distance * scale for distance in away)
    return [None if reward is None else next(advantages) for reward in rewards]


def _inverse_deviation(away: Sequence[float]) -> float:
    variance = math.fsum(distance**2 for distance in away) / (len(away) - 1)
    return 1 / math.sqrt(variance)


_SCALES: dict[Algorithm, Callable[[Sequence[float]], float]] = {
    Algorithm.GRPO: _inverse_deviation,
    Algorithm.DR_GRPO: lambda away: 1.0,
    # r - mean of the others = n / (n - 1) * (r - mean of all)
    Algorithm.RLOO: lambda away: len(away) / (len(away) - 1),
    Algorithm.REINFORCE_PP: lambda away: 1.0,
}


def deviation(advantages: Sequence[float]) -> float:
    """Root mean square: the standard deviation of advantages, whose mean is 0 group by group.

    Exact sums: the order does not matter, down to the last bit.
    """
    if not advantages:
        return 0.0
    return math.sqrt(math.fsum(value * value for value in advantages) / len(advantages))


def generalized_advantages(
    rewards: Sequence[float], values: Sequence[float], *, gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """GAE of one trajectory, as (advantages, returns = advantages + values).

    The value after the end is 0. For estimators with a critic; the group estimators above use none.
    """
    advantages = [0.0] * len(rewards)
    following_value = following_advantage = 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * following_value - values[t]
        following_advantage = advantages[t] = delta + gamma * lam * following_advantage
        following_value = values[t]
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]
