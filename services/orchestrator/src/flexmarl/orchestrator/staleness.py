"""How old what is played, waits and is trained is: told as metrics and written down.

All of it ages when the job's version turns over, and what then waits is trained or played on at
once: so the largest of a step's time counts, not what is seen at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import Gauge

from flexmarl.orchestrator.admission import Place

STALENESS = Gauge(
    "flexmarl_orchestrator_staleness_versions",
    "Versions between a group's oldest token and the job, the largest of the step's time by where "
    "the group is.",
    ["where"],
)


class Ages:
    """The largest since they were asked for last."""

    def __init__(self) -> None:
        self._largest = {"in_flight": 0, "queued": 0}
        self._started: dict[Place, int] = {}

    def start(self, group: Place, version: int) -> None:
        """It is issued (again) while the job stands at that version."""
        self._started[group] = version

    def forget(self, over: Callable[[Place], bool]) -> None:
        for group in [group for group in self._started if over(group)]:
            del self._started[group]

    def started(self, flies: Callable[[Place], bool]) -> list[int]:
        """Versions at which those that still fly were issued."""
        return [version for group, version in self._started.items() if flies(group)]

    def see(
        self, version: int, *, in_flight: Iterable[int] = (), queued: Iterable[int] = ()
    ) -> None:
        """Versions of the oldest tokens while the job stands at `version`."""
        for where, oldest in (("in_flight", in_flight), ("queued", queued)):
            self._largest[where] = max([self._largest[where], *(version - one for one in oldest)])
            STALENESS.labels(where).set(self._largest[where])

    def told(self, trained: int) -> dict[str, int]:
        """With that of what is trained. What is seen from now on is the next step's."""
        largest = self._largest | {"trained": max(0, trained)}
        STALENESS.labels("trained").set(largest["trained"])
        self._largest = dict.fromkeys(self._largest, 0)
        return largest
