"""Who leads the job: the incarnation, and where the job stands by what the store and files say.

First the number is taken, which silences whoever led before; only then is asked where the job
stands. The other way round that one could go on in between, and what it did would be undone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from flexmarl.experience.client import ExperienceClient
from flexmarl.orchestrator.calls import StoreLostError
from flexmarl.orchestrator.inputs import Inputs
from flexmarl.orchestrator.position import (
    Position,
    checkpoint_at,
    fall_back,
    from_disk,
    from_fields,
)
from flexmarl.orchestrator.rundir import RunDir
from flexmarl.orchestrator.store import Store
from flexmarl.runtime.errors import FencedError

log = structlog.get_logger()


class Lead:
    """Of one orchestrator, over all its incarnations; `take` begins each."""

    def __init__(
        self, inputs: Inputs, experience: ExperienceClient, store: Store, files: RunDir
    ) -> None:
        self._inputs, self._experience, self._files = inputs, experience, files
        self._store = store
        self.incarnation = 0
        self.position = Position(0, time.time(), discard=True)
        self.moved = False
        """A step was finished since the last recovery."""
        self._above = 0
        """An incarnation that others know and the store has forgotten."""
        self._own = False
        """What the files say of where the job stands is of this very submission."""

    async def take(self) -> None:
        """Take the next number, and stand where the job stands. FencedError: another orchestrator
        has taken over; the number that was taken silences it, so that only one that starts anew
        goes on.

        It is above any that was before, even if the store forgot them: what is left of those must
        not be believed.
        """
        before = self.incarnation
        if before:  # a store that forgot our number learns it, or fences us
            await self._experience.put_state(before, {})
        last = max(self._above, await asyncio.to_thread(self._files.incarnation))
        self.incarnation = 0
        while self.incarnation <= last:
            self.incarnation = await self._experience.take_incarnation()
        await asyncio.to_thread(self._files.begin, self.incarnation)
        structlog.contextvars.bind_contextvars(incarnation=self.incarnation)
        # Now nobody else writes, and a crash finds the same position and does this again.
        fields = await self._experience.get_state()
        if not before:
            await self._find(fields)
        elif (known := int(fields.get("incarnation", 0))) > before:
            raise FencedError(f"incarnation {known} had taken over from {before}")
        position = self.position
        await self.keep(position)
        if position.discard:
            await self._experience.roll_back(self.incarnation, position.step)
        trained = self._own and not position.discard
        await asyncio.to_thread(
            self._files.rewind, position.step, evaluated=self._own, trained=trained
        )
        if position.step:
            await self._experience.close_step(self.incarnation, position.step - 1)

    async def _find(self, fields: Mapping[str, str]) -> None:
        """Where to start; `fields` are those of the store."""
        found = await asyncio.to_thread(from_fields, fields, self._inputs)
        if found is None:
            found = await asyncio.to_thread(from_disk, self._inputs, time.time())
        if found is not None:
            log.info("taking over", step=found.step)
            self.position, self._own = found, True
        elif resume_from := self._inputs.settings.resume_from:
            start = await asyncio.to_thread(checkpoint_at, Path(resume_from), self._inputs)
            log.info("resuming", step=start.step, checkpoint=resume_from)
            self.position = Position(
                start.step, time.time(), start, draws=start.draws, discard=True
            )

    async def keep(self, position: Position, only: Collection[str] = ()) -> None:
        """From now on the job stands there, whoever leads it; `only`: the fields that differ."""
        self.moved |= position.step > self.position.step
        fields = position.fields(self.incarnation)
        told = {name: fields[name] for name in only or fields}
        await self._experience.put_state(self.incarnation, told)
        self.position = position

    async def followed(self) -> None:
        """All policies stand where the job does."""
        if self.position.discard:
            await self.keep(replace(self.position, discard=False))

    def lost_store(self, above: int) -> None:
        """The store lost its memory, but others know an incarnation: the next is `above` it."""
        self._own, self._above = True, max(self._above, above)

    def lost_state(self) -> None:
        """Policies do not stand where the job does: the next incarnation begins further back."""
        self._own, self.position = True, fall_back(self.position)

    async def guard(self) -> None:
        """Until cancelled, see to it that the store knows us and nobody above us."""
        while True:
            await asyncio.sleep(self._inputs.limits.confirm)
            fields = await self._store.ask(self.position.step)
            if fields is None:
                continue
            known = int(fields.get("incarnation", 0))
            if known > self.incarnation:
                raise FencedError(f"incarnation {known} has taken over from {self.incarnation}")
            if known < self.incarnation:
                raise StoreLostError("the store has lost its memory")
