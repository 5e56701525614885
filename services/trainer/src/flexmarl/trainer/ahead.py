"""Groups of a step as they come; the next ones are asked for while these are folded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from flexmarl.experience.client import Lease


class Ahead:
    """Asks by `ask`, given the cursor of the answer before."""

    def __init__(self, ask: Callable[[str], Awaitable[Lease]]) -> None:
        self._ask = ask
        self._go_on("")

    async def take(self) -> Lease:
        """The next answer, which may be empty."""
        return await self._next

    def go_on(self, lease: Lease) -> None:
        """Ask for what follows this answer."""
        self._go_on(lease.cursor)

    def _go_on(self, cursor: str) -> None:
        self._next: asyncio.Future[Lease] = asyncio.ensure_future(self._ask(cursor))

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
