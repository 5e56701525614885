"""What is to be done about a job, given where it is; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from flexmarl.controller.clock import due, seconds
from flexmarl.controller.names import ORCHESTRATOR
from flexmarl.controller.observed import JobState, Observed, Pod
from flexmarl.controller.phase import FINAL, Phase
from flexmarl.controller.preparation import FAILED

TRY_SECONDS = 60.0
"""After its last try an orchestrator's preflight is tried anew."""


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
    anew: bool = False
    """The orchestrator's Job, which waits longer each time: it is to try now."""
    find: bool = False
    """Ask for what pods need and nobody tells of: some find no node."""
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
    if seen.problems or seen.later:  # another version took it: it goes on as that has made it
        return Plan(Wish.AS_IT_IS, again=due(status, seen))
    tries = _tries(seen)
    return Plan(
        Wish.ALL,
        anew=seen.now >= tries,
        find=any(pod.unschedulable or pod.unscheduled_since for pod in seen.pods),
        again=min(due(status, seen), tries if tries > seen.now else float("inf")),
    )


def _tries(seen: Observed) -> float:
    """When the orchestrator is to try again what may pass. Its Job alone would wait for minutes,
    and keep each pod that failed. Infinite: it does try, or has crashed, which the Job counts."""
    pods = [pod for pod in seen.pods if pod.role == ORCHESTRATOR]
    waits = seen.orchestrator is JobState.ACTIVE and any(pod.report for pod in pods)
    if not waits or not all(_waits(pod) for pod in pods):
        return float("inf")
    return max(pod.failed_at for pod in pods) + TRY_SECONDS


def _waits(pod: Pod) -> bool:
    uncounted = pod.report is not None or pod.disrupted
    return pod.phase == FAILED and uncounted and not (pod.prepared or pod.deleting)
