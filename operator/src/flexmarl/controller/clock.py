"""How long a job has run: from its first Running on, without what it was suspended; pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from flexmarl.controller.names import Manifest
from flexmarl.controller.observed import Observed
from flexmarl.controller.phase import FINAL, Phase


def clock(before: Mapping[str, Any], phase: Phase, now: float) -> Manifest:
    """Of a status: `startTime`, and how long the clock has stood still since then.

    It stands from the suspension until the job runs again, for pods may find no room meanwhile.
    """
    started = before.get("startTime") or (stamp(now) if phase is Phase.RUNNING else None)
    if started is None:
        return {}
    since, paused = before.get("pausedSince"), int(before.get("pausedSeconds") or 0)
    if since and phase in (Phase.RUNNING, *FINAL):
        paused += max(0, round(now - seconds(since)))
        since = None
    elif not since and phase in (Phase.SUSPENDING, Phase.SUSPENDED):
        since = stamp(now)
    found: Manifest = {"startTime": started}
    if paused:
        found["pausedSeconds"] = paused
    if since:
        found["pausedSince"] = since
    return found


def due(status: Mapping[str, Any], seen: Observed) -> float:
    """When activeDeadlineSeconds will have passed; infinite while their clock stands still."""
    started = status.get("startTime")
    if not started or status.get("pausedSince") or seen.deadline is None:
        return float("inf")
    return seconds(started) + int(status.get("pausedSeconds") or 0) + seen.deadline


def overdue(status: Mapping[str, Any], seen: Observed) -> bool:
    """Whether the job has run for longer than it may."""
    return seen.now > due(status, seen)


def seconds(text: str | None) -> float:
    """A time of the API server as seconds since 1970; 0 when there is none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def stamp(now: float) -> str:
    """Such a time as the API server has it."""
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%SZ}"
