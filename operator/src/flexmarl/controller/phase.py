"""Where a job is in its life: from what was and what is seen, never from which event came; pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from flexmarl.controller.observed import Finding, JobState, Observed


class Phase(StrEnum):
    PENDING = "Pending"
    """Nothing was seen of it yet."""
    STARTING = "Starting"
    RUNNING = "Running"
    SUSPENDING = "Suspending"
    """Its last step is being saved, or pods are on their way out; not to be taken back."""
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


FINAL = (Phase.COMPLETE, Phase.FAILED)


def next_phase(
    current: Phase, seen: Observed, findings: Sequence[Finding], *, overdue: bool = False
) -> Phase:
    """`overdue`: activeDeadlineSeconds have passed."""
    hopeless = overdue or any(finding.fatal for finding in findings)
    goes_on = current is Phase.RUNNING and seen.orchestrator is JobState.ACTIVE
    match seen:
        case _ if current in FINAL:
            found = current
        case Observed(orchestrator=JobState.COMPLETE):
            found = Phase.COMPLETE
        case Observed(orchestrator=JobState.FAILED):
            found = Phase.FAILED
        case _ if hopeless:
            found = Phase.FAILED
        case _ if seen.suspend or current is Phase.SUSPENDING:
            # Once begun it goes to its end: an orchestrator that was asked to save rests for good.
            if seen.pods or seen.workloads:
                found = Phase.SUSPENDING
            else:
                found = Phase.SUSPENDED if seen.suspend else Phase.STARTING
        case _ if seen.complete_pods or goes_on:  # a pod that comes back starts nothing anew
            found = Phase.RUNNING
        case _:
            found = Phase.STARTING
    return found
