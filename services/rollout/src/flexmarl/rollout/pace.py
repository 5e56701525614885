"""Work of many tasks that comes up in one turn of the event loop, spread over several."""

from __future__ import annotations

import asyncio

TURN_SECONDS = 0.003


class Pace:
    """Dozens of groups end with one answer of an engine: the first are sent before the last are
    turned into samples."""

    def __init__(self) -> None:
        self._until: float | None = None

    async def keep(self) -> None:
        """Return at once; or in a later turn, when others have had this one for long enough."""
        loop = asyncio.get_running_loop()
        while self._until is not None:
            if loop.time() < self._until:
                return
            await asyncio.sleep(0)
        self._until = loop.time() + TURN_SECONDS
        loop.call_soon(self._over)

    def _over(self) -> None:
        self._until = None
