"""Whether a job that goes on and on teaches anybody anything; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.pipeline import DifficultySpec
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.position import Position
from flexmarl.runtime.errors import JobFailedError

HINT = "the tasks are too easy or too hard, "


class Hardness:
    """Whether steps tell how hard their tasks are, where that matters."""

    def __init__(self, difficulty: DifficultySpec | None) -> None:
        self._difficulty = difficulty
        self._untold = 0

    def untold(self, agents: Mapping[str, Mapping[str, Any]]) -> int:
        """Steps in a row, up to that of these metrics, in which all episodes were right, or none:
        for the agent that counts, or each."""
        if self._difficulty is not None:
            counts = self._difficulty.agent
            own = [each for name, each in agents.items() if counts in (None, name)]
            told = any(0 < (each["accuracy"] or 0.0) < 1 for each in own)
            self._untold = 0 if told else self._untold + 1
        return self._untold


def must_learn(position: Position, counts: Mapping[str, Any], limits: Limits) -> None:
    """JobFailedError after too many steps that taught nobody anything.

    `counts`: of the last one, behind which the job stands.
    """
    number, idle, used_up = position.step - 1, position.idle, position.used_up
    if used_up >= limits.used_up_steps:
        raise JobFailedError(
            f"the filter dropped every task of {used_up} steps in a row, up to step {number}, for "
            f"each place as often as maxRefills allows (last step: {dict(counts)}); {HINT}the "
            "reward cannot tell answers apart, or pipeline.filter is too strict"
        )
    if idle >= limits.idle_steps:
        raise JobFailedError(
            f"no policy was updated in {idle} steps in a row, up to step {number}: the rewards "
            f"within each group were all equal or missing (last step: {dict(counts)}); {HINT}or "
            "the reward cannot tell answers apart"
        )
