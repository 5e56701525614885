"""Fields of a task's record that workflow, reward and scorers cannot do without.

They are told before anything is played, so that a misspelt column is found before the job starts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flexmarl.contracts.problems import FieldPath, Problem, nearest, one_of, show


@dataclass(frozen=True, slots=True)
class Need:
    """A field of the record, and the field of the job file that asks for it."""

    field: str
    path: FieldPath
    filled: bool = False
    """Null will not do."""

    def unmet(self, record: Mapping[str, Any], where: str = "the task") -> Problem | None:
        """What is wrong with `record`, which stands at `where`; None when it has the field."""
        if record.get(self.field) is not None or (self.field in record and not self.filled):
            return None
        if self.field in record:
            return Problem(self.path, f"{where} has nothing in its field {show(self.field)}")
        return Problem(
            self.path,
            f"{where} has no field {show(self.field)}",
            f"there is {one_of(record)}",
            nearest(self.field, record),
        )


def unmet(
    needs: Iterable[Need], sources: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[Problem]:
    """One problem per need that a record does not meet; `sources` go by their job file's field."""
    named = [
        (f"record {number} of {source}", record)
        for source, records in sources.items()
        for number, record in enumerate(records, start=1)
    ]
    for need in dict.fromkeys(needs):
        found = (need.unmet(record, where) for where, record in named)
        yield from itertools.islice((problem for problem in found if problem is not None), 1)
