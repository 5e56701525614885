"""What is wrong with a job's data, by the field of the job file that says so."""

from __future__ import annotations

from flexmarl.contracts.problems import FieldPath, Problem
from flexmarl.runtime.errors import InvalidJobError


class DataError(InvalidJobError):
    """Data that cannot be used; the text is that of `problem`, with the field in front."""

    def __init__(
        self, field: str, below: FieldPath, says: str, allowed: str = "", near: str = ""
    ) -> None:
        """`field`: where the data stand in the job file; `below`: what is wrong under it."""
        self.problem = Problem(below, says, allowed, near)
        """Its path counts from the data's own field."""
        super().__init__(f"{field}.{self.problem}")
