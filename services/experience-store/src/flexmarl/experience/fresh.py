"""Groups that were stored a moment ago, for the trainer that is waiting for them.

Nearly every group is leased once, right after it was stored. Then its data need not come back from
the server, which still says what there is and who may have it: what is here was stored under the
very name that it gives out. Whoever asks again, or another instance, reads from the server.
"""

from __future__ import annotations

from collections import OrderedDict

from flexmarl.experience.wire import Part

FRESH_BYTES = 64 << 20
"""Kept at most; the oldest go first."""
COPIED_PART = 4
"""Data that is less than this part of the request that it came with is kept as a copy, or it would
keep all of that."""


class Fresh:
    def __init__(self, most: int = FRESH_BYTES) -> None:
        self._most, self._size = most, 0
        self._data: OrderedDict[tuple[str, str], Part] = OrderedDict()

    def put(self, policy: str, name: str, data: Part) -> None:
        self.take(policy, name)
        if isinstance(data, memoryview) and data.nbytes * COPIED_PART < memoryview(data.obj).nbytes:
            data = bytes(data)
        self._data[policy, name] = data
        self._size += len(data)
        while self._size > self._most:
            _, oldest = self._data.popitem(last=False)
            self._size -= len(oldest)

    def take(self, policy: str, name: str) -> Part | None:
        """The data, once; none: read it from the server."""
        data = self._data.pop((policy, name), None)
        if data is not None:
            self._size -= len(data)
        return data
