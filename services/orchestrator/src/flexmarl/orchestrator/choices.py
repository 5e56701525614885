"""Which task each group is played with, while steps are open: `tasks`, with what it depends on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flexmarl.data.difficulty import Posterior
from flexmarl.data.tasks import Task
from flexmarl.orchestrator.admission import Place
from flexmarl.orchestrator.tasks import Tasks


class Choices:
    """A group is called by the place that it was drawn for."""

    def __init__(self, tasks: Tasks, refills: str) -> None:
        """`refills`: what `dump` said last."""
        self._tasks = tasks
        found = json.loads(refills or "[]")
        self._refills: Counter[Place] = Counter({(step, at): count for step, at, count in found})
        self._known: dict[int, dict[str, Posterior]] = {}
        self._chosen: dict[tuple[Place, int], Task] = {}
        self.lines: Sequence[Mapping[str, Any]] = ()
        """The metrics of all finished steps, where tasks are chosen by difficulty."""

    def task(self, group: Place) -> Task:
        number, refill = group[0], self._refills.get(group, 0)
        task = self._chosen.get((group, refill))
        if task is None:
            if number not in self._known:
                self._known[number] = self._tasks.known_before(number, self.lines)
            task = self._tasks.at(group, refill, self._known[number])
            self._chosen[group, refill] = task
        return task

    def refill(self, group: Place) -> int:
        """How many of its tasks were dropped."""
        return self._refills.get(group, 0)

    def drop(self, group: Place) -> None:
        """It gets another task."""
        self._refills[group] += 1

    def dump(self) -> str:
        return json.dumps([[*place, count] for place, count in sorted(self._refills.items())])

    def close(self, number: int, over: Callable[[Place], bool]) -> None:
        """That step is trained; groups that are `over` are not asked for any more."""
        for group in [group for group in self._refills if over(group)]:
            del self._refills[group]
        for key in [key for key in self._chosen if over(key[0])]:
            del self._chosen[key]
        for step in [step for step in self._known if step < number - self._tasks.ahead]:
            del self._known[step]
