"""Which jobs the long crash matrix strikes, with what, and what must be true of them in the end."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from .running import Job
from .specs import (
    QUICK,
    TIRELESS,
    Spec,
    choosy,
    debaters,
    enduring,
    one_after_the_other,
    pooled,
    replicated,
    selecting,
    stale,
    unordered,
)
from .strikes import FROZEN, KILLS, OTHERS, POD_LOST, SECOND_LOST, STORE_LOST, Strike
from .tormented import deviations, stale_deviations, unordered_deviations

STALENESS = 2
Compare: TypeAlias = Callable[[Job, Job], list[str]]


@dataclass(frozen=True)
class Campaign:
    title: str
    reference: Spec
    """Undisturbed."""
    even: Spec
    odd: Spec
    """Of runs with such a number. They differ in how many processes there are of a kind: the
    outcome may not depend on that."""
    strikes: list[Strike]
    compare: Compare


def campaigns(kills: int) -> list[Campaign]:
    """With so many kills of each kind of process in the largest, and few in the others."""

    def some(share: float) -> int:
        return max(1, round(kills * share))

    few = KILLS * some(0.04) + OTHERS * some(0.04)
    # Groups that are kept for replay are not there again where the store lost them.
    kept = [each for each in few if each not in (STORE_LOST, SECOND_LOST)]
    models = KILLS * some(0.04) + [POD_LOST, POD_LOST, STORE_LOST, SECOND_LOST] + KILLS[:2]
    scripted = [
        *(KILLS * kills),
        # Of those that share memory, and of the store: the pods that hold more than a process.
        *([POD_LOST, STORE_LOST] * kills),
        *([SECOND_LOST] * some(0.2)),
        *([FROZEN] * some(0.4)),
    ]
    return [
        _campaign("transformers", enduring(30, engine="transformers"), models),
        _stale("bounded staleness", stale(40, STALENESS), few),
        _stale("partial rollouts", stale(40, STALENESS, partialRollout=True), few),
        _campaign("selection", selecting(enduring(60)), kept),
        _campaign("out of order", unordered(enduring(24)), few, unordered_deviations),
        _campaign("participants", choosy(enduring(40)), few),
        _pools(few),
        _campaign("scripted", enduring(60), scripted),
    ]


def _campaign(
    title: str, spec: Spec, strikes: list[Strike], compare: Compare = deviations
) -> Campaign:
    return Campaign(title, one_after_the_other(spec), spec, replicated(spec), strikes, compare)


def _stale(title: str, spec: Spec, strikes: list[Strike]) -> Campaign:
    """Steps overlap, or they would not be stale."""

    def within_bound(job: Job, reference: Job) -> list[str]:
        return stale_deviations(job, reference, STALENESS)

    return Campaign(title, spec, spec, replicated(spec), strikes, within_bound)


def _pools(strikes: list[Strike]) -> Campaign:
    """Four policies on two engines and two slots, or three of each; undisturbed each has an engine
    of its own."""
    spec = debaters(QUICK, 30, checkpoint={"everySteps": 3})
    spec["eval"]["everySteps"] = 4
    for each in spec["policies"]:
        each["training"]["simulatedTokensPerSecond"] = 5000
    more = copy.deepcopy(spec)
    more["roles"]["worker"] = TIRELESS | {"replicas": 2}
    few, several = pooled(spec, 2, slots=2), pooled(more, 3, slots=3)
    return Campaign("pools", one_after_the_other(spec), few, several, strikes, deviations)
