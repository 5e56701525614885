"""How much sooner a trainer would have been done with a step without the store. Pure.

Against a store that takes no time, which has each group in the trainer's hands at the moment at
which it was played. There the trainer does what it did, and each piece of work takes as long: the
same groups are folded together in the same order, as soon as they are prepared; until then those
that came first are prepared. What the store's work costs others who share its processors is not in
this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """One group."""

    played: float
    seconds: float
    """That preparing it took."""


@dataclass(frozen=True, slots=True)
class Work:
    """A fold or an update."""

    needs: frozenset[int]
    """Numbers of the arrivals without which it cannot begin."""
    seconds: float


def done_without(began: float, arrivals: Sequence[Arrival], works: Iterable[Work]) -> float:
    """When the works, one after the other, would have been done without the store."""
    coming = deque(sorted(range(len(arrivals)), key=lambda number: arrivals[number].played))
    lacking, now = set(coming), began
    for work in works:
        while work.needs & lacking:
            number = coming.popleft()
            now = max(now, arrivals[number].played) + arrivals[number].seconds
            lacking.discard(number)
        now += work.seconds
    return now


class Account:
    """Of a step that began to take groups at `began`; all moments by one clock."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._arrivals: list[Arrival] = []
        self._works: list[Work] = []

    def arrived(self, played: Sequence[float], seconds: float, *, together: bool = False) -> None:
        """Groups that came in one answer, played at these moments, were prepared in `seconds`.

        `together`: with all before them, which none could be without the last one.
        """
        each = 0.0 if together else seconds / max(1, len(played))
        self._arrivals += [Arrival(moment, each) for moment in played]
        if together:
            self.worked(range(len(self._arrivals)), seconds)

    def worked(self, needs: Iterable[int], seconds: float) -> None:
        """A fold of the groups with these numbers, which count arrivals, or an update of none."""
        self._works.append(Work(frozenset(needs), seconds))

    def hindered(self, done: float) -> float:
        """Seconds by which the store kept the trainer from being `done`."""
        return max(0.0, done - done_without(self._began, self._arrivals, self._works))
