"""What the clock of another process showed at a moment of ours. Pure.

Clocks of different machines have nothing in common and drift apart. Of the exchanges of the last
minute the one that was on its way for the shortest time tells best, as in NTP's clock filter
(RFC 5905, 8 and 10): it is wrong by half of that time at most.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

REMEMBERED_SECONDS = 60.0
"""In which clocks drift apart by a few milliseconds at most."""
MOST_EXCHANGES = 32


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer: the outer moments by our clock, the inner ones by the other's."""

    sent: float
    received: float
    answered: float
    got: float

    @property
    def travelled(self) -> float:
        """Seconds on the way, there and back."""
        return (self.got - self.sent) - (self.answered - self.received)

    @property
    def ahead(self) -> float:
        """By how much the other clock shows more."""
        return ((self.received - self.sent) + (self.answered - self.got)) / 2


class OtherClock:
    """One at a time: a process that was started again has a clock of its own, with another id."""

    def __init__(self) -> None:
        self.id = 0
        """0: none is known yet."""
        self._exchanges: deque[Exchange] = deque(maxlen=MOST_EXCHANGES)
        self._ahead = math.nan

    def met(self, id_: int, exchange: Exchange) -> None:
        if id_ != self.id:
            self.id = id_
            self._exchanges.clear()
        recent = self._exchanges
        recent.append(exchange)
        while exchange.got - recent[0].got > REMEMBERED_SECONDS:
            recent.popleft()
        self._ahead = min(recent, key=lambda each: each.travelled).ahead

    def theirs(self, ours: float) -> float:
        """What it showed at that moment of ours; NaN: not known."""
        return ours + self._ahead

    def ours(self, theirs: float) -> float:
        """The other way round."""
        return theirs - self._ahead
