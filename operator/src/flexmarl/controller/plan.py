"""What is to be done about a job, given where it is; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from flexmarl.controller.clock import due, seconds
from flexmarl.controller.names import ORCHESTRATOR
from flexmarl.controller.observed import JobState, Observed
from flexmarl.controller.phase import FINAL, Phase


class Wish(StrEnum):
    ALL = "all"
    """Every object of the job."""
    AS_IT_IS = "as it is"
    """Neither made nor deleted: its state is being saved, or its spec is not understood."""
    KEPT = "kept"
    """Only what outlives its pods."""


@dataclass(frozen=True, slots=True)
class Plan:
    wish: Wish
    save: bool = False
    """Ask the orchestrator to save the last finished step."""
    evidence: bool = False
    """Keep what the pods said before they go."""
    delete_job: bool = False
    """Its ttl is over."""
    again: float = float("inf")
    """When to look again even if nothing happens."""


def plan(status: Mapping[str, Any], seen: Observed, phase: Phase, ttl: float | None = None) -> Plan:
    """`status`: the new one."""
    if phase in FINAL:
        ended = seconds(status["completionTime"])
        over = float("inf") if ttl is None else ended + ttl
        return Plan(Wish.KEPT, evidence=bool(seen.pods), delete_job=seen.now >= over, again=over)
    if phase is Phase.SUSPENDING:
        until = seconds(status["suspendingSince"]) + seen.suspend_timeout
        saved = seen.progress is not None and seen.progress.saved >= 0
        # Before its first step, and on no node, it has nothing that is not saved.
        worth = bool(status.get("step")) and not any(
            pod.unschedulable for pod in seen.pods if pod.role == ORCHESTRATOR
        )
        if seen.orchestrator is JobState.ACTIVE and worth and not saved and seen.now < until:
            return Plan(Wish.AS_IT_IS, save=True, again=until)
        return Plan(Wish.KEPT)
    if phase is Phase.SUSPENDED:
        return Plan(Wish.KEPT)
    if seen.problems:  # an earlier version took it: it goes on as that has made it
        return Plan(Wish.AS_IT_IS, again=due(status, seen))
    return Plan(Wish.ALL, again=due(status, seen))
