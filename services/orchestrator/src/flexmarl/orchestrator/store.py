"""Whether the store can be used, as it was when it was asked last: for people, and for the desk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from flexmarl.experience.client import ExperienceClient, StoredStep
from flexmarl.orchestrator.desk import Desk
from flexmarl.orchestrator.limits import Limits
from flexmarl.runtime.errors import UnavailableError

log = structlog.get_logger()


class Store:
    """`asking`: a client that soon gives up and says why; whoever works with the store waits."""

    def __init__(
        self,
        asking: ExperienceClient,
        limits: Limits,
        desk: Desk,
        *,
        groups: int,
        stored: Callable[[], int],
    ) -> None:
        """`groups`: of a step; `stored`: how many of them all have been so far."""
        self._asking, self._limits, self._desk, self._groups = asking, limits, desk, groups
        self._stored, self._before = stored, -1
        self._lacks = ""
        self._full_since: float | None = None

    def away(self) -> list[str]:
        """It, or what it lacks."""
        return [self._lacks] if self._lacks else []

    async def watch(self, step: int) -> None:
        """Until cancelled, ask."""
        while True:
            await asyncio.sleep(self._limits.confirm)
            await self.ask(step)

    async def ask(self, step: int) -> Mapping[str, str] | None:
        """The state that it keeps of the job; None: it does not answer. `step`: whose groups wait
        for room first."""
        try:
            async with asyncio.timeout(self._limits.short_call):
                fields = await self._asking.get_state()
                found = None if self._takes() else await self._asking.stored(step)
        except (UnavailableError, TimeoutError) as error:
            why = str(error) or f"no answer within {self._limits.short_call:g} s"
            if not self._desk.store_away:
                log.warning("the store is away", error=why)
            self._desk.store_away, self._lacks = why, "the experience store"
            return None
        self.answered()
        self._look(found, step)
        return fields

    def answered(self) -> None:
        """It can be used."""
        self._desk.store_away, self._lacks = "", ""

    def _takes(self) -> bool:
        """Whether it has taken groups since this was asked last: it has room."""
        before, self._before = self._before, self._stored()
        return self._before > before >= 0

    def _look(self, found: StoredStep | None, step: int) -> None:
        if found is None or (full := found.full) is None:
            self._full_since = self._desk.store_full = None
            return
        now = time.monotonic()
        if self._full_since is None:
            log.warning("the store is full", used=full.used, most=full.most, step=step)
            self._full_since = now
        self._lacks = (
            f"room in the store: {full.used >> 20} of {full.most >> 20} MiB are taken, "
            f"{len(found.indexes)} of {self._groups} groups of step {step} are there"
        )
        if now - self._full_since >= self._limits.full:
            self._desk.store_full = full
