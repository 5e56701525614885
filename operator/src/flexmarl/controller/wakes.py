"""Which jobs are to be looked at, and when."""

from __future__ import annotations

import asyncio
import time

from flexmarl.controller.cache import Key


class Wakes:
    """Each job once, however often it was named, and by one at a time."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
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
            self._changed.set()

    async def next(self) -> Key:
        """A job that is due and that nobody looks at; `done` must follow."""
        while True:
            now = time.monotonic()
            free = {key: at for key, at in self._due.items() if key not in self._busy}
            key = min(free, key=lambda one: free[one], default=None)
            if key is not None and free[key] <= now:
                del self._due[key]
                self._busy.add(key)
                return key
            self._changed.clear()
            try:
                async with asyncio.timeout(None if key is None else free[key] - now):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: Key) -> None:
        self._busy.discard(key)
        self._changed.set()
