"""When to look at a job again for what no watch tells of; pure."""

from __future__ import annotations

from flexmarl.controller.observed import Observed
from flexmarl.controller.placing import UNSEEN_SECONDS

SOON_SECONDS, AGAIN_SECONDS, ROOM_SECONDS = 1.0, 10.0, 60.0
"""After so long it is looked at again: it has changed during the look; something is missing or was
refused, and that it still is would be no change; nodes lack room, and how much is told."""


def next_look(seen: Observed, *, same: bool, waits: bool) -> float:
    """Infinite: not before something happens. `same`: the job has not changed during the look;
    `waits`: for more than can be seen."""
    waits |= any(pod.deleting or pod.unstarted_since or pod.unready_since for pod in seen.pods)
    waits |= any(one.lacks or one.trouble for one in seen.workloads)
    if not same:
        return seen.now + SOON_SECONDS
    if seen.findings or waits:
        return seen.now + AGAIN_SECONDS
    if any(pod.unschedulable for pod in seen.pods):
        return seen.now + ROOM_SECONDS
    silent = [pod.unscheduled_since for pod in seen.pods if pod.unscheduled_since]
    told = [since + UNSEEN_SECONDS + 1 for since in silent]
    return min((at for at in told if at > seen.now), default=float("inf"))
