"""Groups of a step as they come; the next ones are asked for while these are folded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from flexmarl.experience.client import Lease


class Ahead:
    """Asks by `ask`, given the cursor of the answer before."""

    def __init__(self, ask: Callable[[str], Awaitable[Lease]]) -> None:
        self._ask = ask
        self._next: asyncio.Future[Lease] = asyncio.ensure_future(ask(""))
        self.store_seconds = 0.0
        """That the store took and that nothing has made up for since: while there was nothing to
        hand out the store was not what was waited for."""

    async def take(self) -> Lease:
        """The next answer, which may be empty."""
        asked = time.perf_counter()
        lease = await self._next
        waited = time.perf_counter() - asked
        store = min(lease.seconds, waited)
        self.store_seconds = max(0.0, self.store_seconds - (waited - store)) + store
        return lease

    def go_on(self, lease: Lease) -> None:
        """Ask for what follows this answer."""
        self._next = asyncio.ensure_future(self._ask(lease.cursor))

    async def close(self) -> None:
        self._next.cancel()
        await asyncio.gather(self._next, return_exceptions=True)


@asynccontextmanager
async def leasing_ahead(ask: Callable[[str], Awaitable[Lease]]) -> AsyncIterator[Ahead]:
    ahead = Ahead(ask)
    try:
        yield ahead
    finally:
        await ahead.close()
