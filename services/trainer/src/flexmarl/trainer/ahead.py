"""Groups of a step as they come; the next ones are asked for while these are folded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from flexmarl.experience.client import Lease


def stalled(before: float, *, asked: float, ready: float, got: float, waited: bool) -> float:
    """Seconds by which the store has held up a step, after one more answer.

    `before`: the same until then. `asked`, `ready` and `got` are when the trainer had nothing left
    to do, when the store had something (at the latest, unless it `waited` for that) and when the
    trainer got it. What comes to a trainer that waits already would not have come sooner whatever
    the store took before: that is made up for.
    """
    if waited and ready >= asked:
        return got - ready
    return before + got - max(asked, ready)


class Ahead:
    """Asks by `ask`, given the cursor of the answer before."""

    def __init__(self, ask: Callable[[str], Awaitable[Lease]]) -> None:
        self._ask = ask
        self._go_on("")
        self.store_seconds = 0.0
        """By which the store has held up the step so far."""

    async def take(self) -> Lease:
        """The next answer, which may be empty."""
        asked = time.perf_counter()
        lease = await self._next
        self.store_seconds = stalled(
            self.store_seconds,
            asked=asked,
            ready=self._began + lease.waited,
            got=time.perf_counter(),
            waited=lease.waited > 0,
        )
        return lease

    def go_on(self, lease: Lease) -> None:
        """Ask for what follows this answer."""
        self._go_on(lease.cursor)

    def _go_on(self, cursor: str) -> None:
        self._began = time.perf_counter()
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
