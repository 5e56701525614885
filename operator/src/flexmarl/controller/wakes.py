"""Which jobs are to be looked at, and when."""

from __future__ import annotations

import asyncio
import time
from heapq import heapify, heappop, heappush
from itertools import count

from flexmarl.controller.cache import Key

STALE = 2
"""Times as many places in the queue as there are jobs in it: then it is made anew."""


class Wakes:
    """Each job once, however often it was named, and by one at a time."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._queue: list[tuple[float, int, Key]] = []
        """The earliest first; places at other times than `_due` has are of no account."""
        self._places = count()
        self._busy: set[Key] = set()
        self._changed = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Whether some job is being looked at."""
        return bool(self._busy)

    def wake(self, key: Key, delay: float = 0) -> None:
        at = time.monotonic() + delay
        if at < self._due.get(key, float("inf")):
            self._due[key] = at
            self._enqueue(key)

    async def next(self) -> tuple[Key, float]:
        """A job that nobody looks at, and since when it is due; `done` must follow."""
        while True:
            at, now = self._first(), time.monotonic()
            if at is not None and at <= now:
                key = heappop(self._queue)[2]
                del self._due[key]
                self._busy.add(key)
                return key, at
            self._changed.clear()
            try:
                async with asyncio.timeout(None if at is None else at - now):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: Key) -> None:
        self._busy.discard(key)
        if key in self._due:
            self._enqueue(key)

    def _first(self) -> float | None:
        """When the first job is due that nobody looks at."""
        while self._queue:
            at, _, key = self._queue[0]
            if key not in self._busy and self._due.get(key) == at:
                return at
            heappop(self._queue)
        return None

    def _enqueue(self, key: Key) -> None:
        heappush(self._queue, (self._due[key], next(self._places), key))
        if len(self._queue) > STALE * len(self._due):
            self._queue = [(at, next(self._places), one) for one, at in self._due.items()]
            heapify(self._queue)
        self._changed.set()
