"""Which task each group is played with, while steps are open: `tasks`, with what it depends on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flexmarl.data.difficulty import Evidence, Tried
from flexmarl.data.tasks import Task
from flexmarl.orchestrator.admission import Place
from flexmarl.orchestrator.known import Known, Line
from flexmarl.orchestrator.tasks import Tasks

FIELDS = 32
"""Among which what was dropped is spread by its step, so that a drop writes one of them."""
FIELD = "refills."


class Choices:
    """A group is called by the place that it was drawn for."""

    def __init__(self, tasks: Tasks, refills: Mapping[str, str]) -> None:
        """`refills`: what `dump` said last, by field."""
        self._tasks = tasks
        self._refills = tasks.spec.pipeline.filter is not None
        self._dropped: dict[Place, list[Tried]] = {
            (step, at): [
                (task, {agent: (share, scored) for agent, (share, scored) in solved.items()})
                for task, solved in tried
            ]
            for text in refills.values()
            for step, at, tried in json.loads(text)
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

    def dump(self, step: int | None = None) -> dict[str, str]:
        """What was dropped, by field; `step`: the field alone that has the groups drawn for it."""
        if not self._refills:
            return {}
        fields = range(FIELDS) if step is None else (step % FIELDS,)
        found: dict[int, list[Any]] = {field: [] for field in fields}
        for place in sorted(place for place in self._dropped if place[0] % FIELDS in found):
            found[place[0] % FIELDS].append([*place, self._dropped[place]])
        return {f"{FIELD}{field}": json.dumps(own) for field, own in found.items()}

    def close(self, over: Callable[[Place], bool]) -> None:
        """Groups that are `over` are not asked for any more."""
        for group in [group for group in self._dropped if over(group)]:
            del self._dropped[group]
        for key in [key for key in self._chosen if over(key[0])]:
            del self._chosen[key]
