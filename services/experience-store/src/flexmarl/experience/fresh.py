"""Groups that were stored a moment ago, for the trainer that is waiting for them.

Nearly every group is leased once, right after it was stored. Then its data need not come back from
the server, which still says what there is and who may have it: what is here was stored under the
very name that it gives out. Whoever asks again, or another instance, reads from the server.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, replace

from flexmarl.experience.wire import Part

FRESH_BYTES = 64 << 20
"""Kept at most; the oldest go first."""
COPIED_PART = 4
"""Data that is less than this part of the request that it came with is kept as a copy, or it would
keep all of that."""


@dataclass(frozen=True, slots=True)
class Kept:
    data: Part
    played: float | None = None
    """When, by the clock of this process; none: not known."""


class Fresh:
    def __init__(self, most: int = FRESH_BYTES) -> None:
        self._most, self._size = most, 0
        self._data: OrderedDict[tuple[str, int, str], Kept] = OrderedDict()
        self._count: Counter[tuple[str, int]] = Counter()

    def count(self, policy: str, step: int) -> int:
        """How many groups of the step are here."""
        return self._count[policy, step]

    def put(self, policy: str, step: int, name: str, kept: Kept) -> None:
        self.take(policy, step, name)
        data = kept.data
        if isinstance(data, memoryview) and data.nbytes * COPIED_PART < memoryview(data.obj).nbytes:
            kept = replace(kept, data=bytes(data))
        self._data[policy, step, name] = kept
        self._count[policy, step] += 1
        self._size += len(data)
        while self._size > self._most:
            self.take(*next(iter(self._data)))

    def take(self, policy: str, step: int, name: str) -> Kept | None:
        """The data, once; none: read it from the server."""
        kept = self._data.pop((policy, step, name), None)
        if kept is not None:
            self._size -= len(kept.data)
            self._count[policy, step] -= 1
            if not self._count[policy, step]:
                del self._count[policy, step]
        return kept
