"""Which agents a task needs, where `workflow.participants` names a column that says so."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flexmarl.contracts.problems import FieldPath, Problem, nearest, one_of, show
from flexmarl.runtime.errors import InvalidJobError

PARTICIPANTS: FieldPath = ("spec", "workflow", "participants")


class ParticipantsError(InvalidJobError):
    """The column of a record is no list of the job's agents."""

    def __init__(self, says: str, allowed: str, nearest: str = "") -> None:
        self.problem = Problem(PARTICIPANTS, says, allowed, nearest)
        super().__init__(str(self.problem))


def participants(
    record: Mapping[str, Any], column: str, agents: Collection[str], where: str
) -> list[str]:
    """Their names: of a list, or of text with commas; ParticipantsError names `where` it stands."""
    said = record.get(column)
    if column not in record:
        says = f"{where} has no field {show(column)}"
        raise ParticipantsError(says, f"there is {one_of(record)}", nearest(column, record))
    if isinstance(said, str):
        said = [name.strip() for name in said.split(",")]
    if not isinstance(said, list) or not said:
        says = f"{where} has {show(said)} in its field {show(column)}"
        raise ParticipantsError(says, "must list the agents that the task needs")
    for name in said:
        if name not in agents:
            says = f"{where} names {show(name)}, which is no agent"
            raise ParticipantsError(says, one_of(agents), nearest(name, agents))
    return said
