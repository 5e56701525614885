"""How old what is played, waits and is trained is: told as metrics and written down."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Gauge

STALENESS = Gauge(
    "flexmarl_orchestrator_staleness_versions",
    "Versions between a group's oldest token and the job, the largest by where the group is.",
    ["where"],
)


def told(
    *, in_flight: Iterable[int], queued: Iterable[int], trained: Iterable[int]
) -> dict[str, int]:
    """The largest of each; what is ahead of the job, as only some policies have moved on, is 0."""
    largest = {
        "in_flight": max([0, *in_flight]),
        "queued": max([0, *queued]),
        "trained": max([0, *trained]),
    }
    for where, versions in largest.items():
        STALENESS.labels(where).set(versions)
    return largest
