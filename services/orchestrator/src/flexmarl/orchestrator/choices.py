"""Which task each group is played with, while steps are open: `tasks`, with what it depends on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from flexmarl.data.difficulty import Evidence, Tried
from flexmarl.data.tasks import Task
from flexmarl.orchestrator.admission import Place
from flexmarl.orchestrator.known import Known, Line
from flexmarl.orchestrator.tasks import Tasks


class Choices:
    """A group is called by the place that it was drawn for."""

    def __init__(self, tasks: Tasks, refills: str) -> None:
        """`refills`: what `dump` said last."""
        self._tasks = tasks
        self._dropped: dict[Place, list[Tried]] = {
            (step, at): [
                (task, {agent: (share, scored) for agent, (share, scored) in solved.items()})
                for task, solved in tried
            ]
            for step, at, tried in json.loads(refills or "[]")
        }
        self._known = Known(tasks.spec.pipeline.difficulty, tasks.ahead)
        self._chosen: dict[tuple[Place, int], Task] = {}

    def learn(self, lines: Iterable[Line], oldest: int) -> None:
        """See `Known.learn`; `oldest`: the first step with a group that is not over."""
        self._known.learn(lines, oldest)

    def task(self, group: Place) -> Task:
        refill = self.refill(group)
        task = self._chosen.get((group, refill))
        if task is None:
            task = self._tasks.at(group, refill, self._known.before(group[0]))
            self._chosen[group, refill] = task
        return task

    def refill(self, group: Place) -> int:
        """How many of its tasks were dropped."""
        return len(self._dropped.get(group, ()))

    def dropped(self, group: Place) -> list[Tried]:
        """Those, in their order."""
        return self._dropped.get(group, [])

    def drop(self, group: Place, solved: Evidence) -> None:
        """It gets another task."""
        tried = self.task(group).id, solved
        self._dropped.setdefault(group, []).append(tried)

    def dump(self) -> str:
        return json.dumps([[*place, tried] for place, tried in sorted(self._dropped.items())])

    def close(self, over: Callable[[Place], bool]) -> None:
        """Groups that are `over` are not asked for any more."""
        for group in [group for group in self._dropped if over(group)]:
            del self._dropped[group]
        for key in [key for key in self._chosen if over(key[0])]:
            del self._chosen[key]
