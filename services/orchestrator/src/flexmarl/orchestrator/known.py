"""What is known of each task's solve rate when a step begins, by the metrics of earlier ones; pure.

A step may know those below it that are surely known whenever its groups may start: what it knows is
the same whichever orchestrator asks. Each step's metrics are looked at once and carried on: a step
that is still asked for adds what lies between it and the oldest such step.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import Any

from flexmarl.contracts.pipeline import DifficultySpec
from flexmarl.data.difficulty import Outcome, Posterior, posteriors

Line = Mapping[str, Any]


class Known:
    """`learn` of a step before one is asked for that may know it."""

    def __init__(self, difficulty: DifficultySpec | None, ahead: int) -> None:
        """`ahead`: how many steps behind the one in training may begin. Without difficulty nothing
        is known of any task."""
        self._difficulty, self._ahead = difficulty, ahead
        self._base: dict[str, Posterior] = {}
        """By the steps below `_first`, which all that are still asked for may know."""
        self._first = 0
        self._later: dict[int, list[Outcome]] = {}
        """Of steps from `_first` on."""
        self._before: dict[int, Mapping[str, Posterior]] = {}

    def learn(self, lines: Iterable[Line], oldest: int) -> None:
        """Metrics of finished steps, in order; known ones change nothing. Steps below `oldest` are
        not asked for any more."""
        if self._difficulty is None:
            return
        for line in lines:
            if line["step"] >= self._first:
                self._later[line["step"]] = _outcomes(line, self._difficulty.agent)
        self._first = max(self._first, oldest - self._ahead)
        self._base.update(self._after_base(self._first))
        for step in [step for step in self._later if step < self._first]:
            del self._later[step]
        for step in [step for step in self._before if step < oldest]:
            del self._before[step]

    def before(self, step: int) -> Mapping[str, Posterior]:
        """What the metrics of the steps below `step` - `ahead` say."""
        if step not in self._before:
            more = self._after_base(step - self._ahead)
            # Stays true when the base moves on: what changes there is hidden by `more`.
            self._before[step] = ChainMap(more, self._base)
        return self._before[step]

    def _after_base(self, end: int) -> dict[str, Posterior]:
        """Of the tasks that the steps from the base to `end` played."""
        if self._difficulty is None:
            return {}
        steps = sorted(step for step in self._later if step < end)
        outcomes = (outcome for step in steps for outcome in self._later[step])
        return posteriors(outcomes, self._difficulty.discount, self._base)


def _outcomes(line: Line, agent: str | None) -> list[Outcome]:
    """Of each group with a scored episode: of one agent, or the mean over agents. Groups that were
    dropped come before the one that took their place."""
    found = []
    for task, group in zip(line["tasks"], line["groups"], strict=True):
        tried = [(each["task"], each["solved"]) for each in group.get("dropped", ())]
        for name, solved in [*tried, (task, group.get("solved", {}))]:
            counted = [solved[agent]] if agent in solved else [] if agent else list(solved.values())
            if name is not None and counted:
                accuracy = sum(share for share, _ in counted) / len(counted)
                found.append((name, accuracy, max(scored for _, scored in counted)))
    return found
