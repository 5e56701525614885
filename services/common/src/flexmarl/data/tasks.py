"""Which task is played at which step and index: pure, so that any restart derives the same again.

The records are played epoch after epoch. Position `step * tasks_per_step + index` in the epochs
laid end to end decides; a step may therefore reach over the border of two epochs, and hold the same
record twice where it needs more than there are. A place that is refilled takes the record at the
same position of another order, one for each refill, so that what the other places play stays.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flexmarl.contracts.sources import DataSpec
from flexmarl.runtime.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class Task:
    """One record and the name it goes by in metrics and transcripts."""

    id: str
    record: dict[str, Any]


def order_seed(spec: DataSpec, job_seed: int) -> int:
    """The seed of the order in which the records of `spec` are played."""
    return job_seed if spec.seed is None else spec.seed


def epoch_order(count: int, seed: int, shuffle: bool, epoch: int) -> tuple[int, ...]:
    """Row numbers 0..count-1 in the order in which `epoch` plays them."""
    return _shuffled(count, seed, epoch) if shuffle else tuple(range(count))


@functools.lru_cache(maxsize=4)  # a step reaches over few epochs; a new one costs a shuffle
def _shuffled(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    rows = list(range(count))
    random.Random(derive_seed(seed, "order", epoch)).shuffle(rows)
    return tuple(rows)


def row_at(count: int, seed: int, shuffle: bool, position: int) -> int:
    """The row that stands at `position` in the epochs laid end to end."""
    epoch, place = divmod(position, count)
    return epoch_order(count, seed, shuffle, epoch)[place]


def row_of_refill(count: int, seed: int, shuffle: bool, position: int, refill: int) -> int:
    """The row at `position` in the `refill`-th order of replacements; 0: in the data's own."""
    if not refill:
        return row_at(count, seed, shuffle, position)
    return row_at(count, derive_seed(seed, "refill", refill), True, position)


def tasks_of_step(
    records: Sequence[dict[str, Any]], seed: int, shuffle: bool, step: int, tasks_per_step: int
) -> list[Task]:
    """The tasks of `step` by index, `tasks_per_step` of them; `records` must not be empty."""
    first = step * tasks_per_step
    return [
        task_of(records, row_at(len(records), seed, shuffle, first + index))
        for index in range(tasks_per_step)
    ]


def task_of(records: Sequence[dict[str, Any]], row: int) -> Task:
    """The task of one row: its `id` field is its name, else the row's number."""
    record = records[row]
    name = record.get("id")
    return Task(str(row) if name is None else str(name), record)
