"""Which task is played where; pure, so that every restart derives the same again.

A function of (data, seed, step, index, refills) and, where tasks are chosen by difficulty, of the
outcomes in the metrics of earlier steps (`known`). Outcomes lie beside their groups in the store,
those of dropped groups with the refills, so that no answer that gets lost changes a choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flexmarl.contracts.job import MARLJobSpec
from flexmarl.data.difficulty import Posterior, choose
from flexmarl.data.participants import participants
from flexmarl.data.tasks import Task, order_seed, row_of_refill, task_of
from flexmarl.orchestrator.admission import Place
from flexmarl.runtime.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of one job."""

    spec: MARLJobSpec
    records: Sequence[dict[str, Any]]

    @property
    def ahead(self) -> int:
        """How many steps behind the one in training are open: as staleness allows, and one more
        where a group may need only policies that are through with the step."""
        return self.spec.pipeline.max_staleness + (self.spec.workflow.participants is not None)

    def at(self, place: Place, refill: int, known: Mapping[str, Posterior]) -> Task:
        """`known`: `Known.before` of the place's step, ignored unless difficulty counts."""
        spec, (step, index) = self.spec, place
        seed = order_seed(spec.data, spec.seed)
        position = step * spec.batch.tasks_per_step + index
        difficulty = spec.pipeline.difficulty
        if difficulty is None:
            return self._row(seed, position, refill)
        first = position * difficulty.candidates
        options = [self._row(seed, first + more, refill) for more in range(difficulty.candidates)]
        draw = derive_seed(spec.seed, "difficulty", step, index, refill)
        names = [task.id for task in options]
        return options[choose(names, known, difficulty.target, draw)]

    def participants(self, task: Task) -> frozenset[str] | None:
        """Policies that the task needs; None: all. ParticipantsError names the task."""
        column = self.spec.workflow.participants
        if column is None:
            return None
        agents = {agent.name: agent.policy for agent in self.spec.agents}
        named = participants(task.record, column, agents, f"task {task.id}")
        return frozenset(agents[name] for name in named)

    def tested(self, task: Task) -> frozenset[str] | None:
        """The same of a held-out task, which may leave it unsaid: then all take part."""
        said = self.spec.workflow.participants in task.record
        return self.participants(task) if said else None

    def _row(self, seed: int, position: int, refill: int) -> Task:
        shuffle = self.spec.data.shuffle
        row = row_of_refill(len(self.records), seed, shuffle, position, refill)
        return task_of(self.records, row)
