"""What the job is given before anything starts, read once and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexmarl.contracts.job import MARLJob
from flexmarl.data.sources import Record, load_records
from flexmarl.data.tasks import Task, order_seed, task_of
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.tasks import Tasks
from flexmarl.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Inputs:
    job: MARLJob
    settings: Settings
    limits: Limits
    records: list[Record]
    held_out: list[Task]
    """Of an evaluation, in the order of their source."""

    @property
    def checkpoints(self) -> Path:
        """Where the job's checkpoints go, absolute."""
        uri, base = self.job.spec.checkpoint.uri, self.settings.base_dir
        own = self.settings.run_dir / "checkpoints"
        return (own if uri is None else base / uri.removeprefix("file://")).absolute()

    @property
    def tasks(self) -> Tasks:
        return Tasks(self.job.spec, self.records)

    def cursor(self, step: int) -> dict[str, Any]:
        """Where in its tasks the job stands: two jobs with one cursor go on in the same way."""
        spec, difficulty = self.job.spec, self.job.spec.pipeline.difficulty
        candidates = difficulty.candidates if difficulty else 1
        position = step * spec.batch.tasks_per_step * candidates
        return {
            "position": position,
            "epoch": position // len(self.records),
            "records": len(self.records),
            "tasks_per_step": spec.batch.tasks_per_step,
            "group_size": spec.batch.group_size,
            "shuffle": spec.data.shuffle,
            "order_seed": order_seed(spec.data, spec.seed),
            "seed": spec.seed,
            "candidates": candidates,
            "partial_rollout": spec.pipeline.partial_rollout,
        }


def read_inputs(job: MARLJob, settings: Settings, limits: Limits) -> Inputs:
    """InvalidJobError when tasks or held-out tasks cannot be used. Blocks on the disk."""
    spec, base = job.spec, settings.base_dir
    records = load_records(spec.data, base, spec.seed)
    held_out: list[Task] = []
    if spec.eval is not None:
        found = load_records(spec.eval.data, base, spec.eval.seed, field="spec.eval.data")
        held_out = [task_of(found, row) for row in range(len(found))][: spec.eval.tasks]
    inputs = Inputs(job, settings, limits, records, held_out)
    for row in range(len(records)):
        inputs.tasks.participants(task_of(records, row))
    for task in held_out:
        inputs.tasks.tested(task)
    return inputs
