"""Which task teaches most: Thompson sampling from what is known of each task's solve rate; pure.

A task's solve rate has a Beta posterior from Beta(1, 1), older evidence discounted at each new
piece, since policies change. A place of a step draws a rate for each of its candidates and takes
the one nearest to the target. Candidates are the next tasks of the data's order, so that each is
considered once per epoch, and everything follows from (seed, outcomes of earlier steps).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

Evidence = dict[str, tuple[float, int]]
"""Of one group: agent -> share of its scored episodes that are right, and how many are scored."""

Tried = tuple[str, Evidence]
"""A group that the filter dropped: its task's id, and how it went."""


def evidence(rewards: Iterable[tuple[str, float]], solved: float) -> Evidence:
    """Of a group's rewards, (agent, reward) each, in any order; right from `solved` on."""
    own: dict[str, list[float]] = {}
    for agent, reward in rewards:
        own.setdefault(agent, []).append(reward)
    return {
        agent: (sum(reward >= solved for reward in scored) / len(scored), len(scored))
        for agent, scored in sorted(own.items())
    }


@dataclass(frozen=True, slots=True)
class Posterior:
    """Beta(1 + solved, 1 + failed) of one task's solve rate."""

    solved: float = 0.0
    failed: float = 0.0

    def after(self, accuracy: float, episodes: float, discount: float) -> Posterior:
        """With the evidence of one more group, of `episodes` scored ones, `accuracy` in [0, 1]."""
        return Posterior(
            discount * self.solved + accuracy * episodes,
            discount * self.failed + (1 - accuracy) * episodes,
        )

    def draw(self, source: random.Random) -> float:
        return source.betavariate(1 + self.solved, 1 + self.failed)


Outcome = tuple[str, float, int]
"""Task id, accuracy, scored episodes."""

NOTHING: Mapping[str, Posterior] = MappingProxyType({})
"""Known of any task."""


def posteriors(
    outcomes: Iterable[Outcome], discount: float, before: Mapping[str, Posterior] = NOTHING
) -> dict[str, Posterior]:
    """What is known of each task of `outcomes` after them, oldest first, and what was `before`."""
    known: dict[str, Posterior] = {}
    for task, accuracy, episodes in outcomes:
        if episodes:
            earlier = known.get(task) or before.get(task, Posterior())
            known[task] = earlier.after(accuracy, episodes, discount)
    return known


def choose(
    candidates: Sequence[str], known: Mapping[str, Posterior], target: float, seed: int
) -> int:
    """The number of the candidate whose drawn solve rate is nearest to `target`."""
    source = random.Random(seed)
    rates = [known.get(task, Posterior()).draw(source) for task in candidates]
    return min(range(len(rates)), key=lambda number: abs(rates[number] - target))
