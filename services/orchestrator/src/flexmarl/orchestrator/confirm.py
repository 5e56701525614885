"""Asks now and then whether the store holds what it should of the step in training.

A store that was killed may lack its last second, and an entry that cannot be read is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

from flexmarl.orchestrator.calls import StateLostError
from flexmarl.orchestrator.step import Parts, Step
from flexmarl.runtime.errors import UnavailableError


class Owner(Protocol):
    """Who has groups played."""

    def current(self) -> Step | None:
        """The step in training."""

    def missing(self, step: Step, lacking: Collection[int]) -> None:
        """The store lost these groups."""


async def confirm(owner: Owner, parts: Parts) -> None:
    """Until cancelled. StateLostError: groups are lost that cannot be played again, as the engines
    of a policy have moved on."""
    while True:
        await asyncio.sleep(parts.limits.confirm)
        step = owner.current()
        versions = parts.training.weights
        if step is None or all(each.version > step.number for each in versions.values()):
            continue  # trained
        lacking: Collection[int] = ()
        if step.complete.is_set():
            try:
                async with asyncio.timeout(parts.limits.short_call):
                    found = await parts.experience.stored(step.number)
            except (UnavailableError, TimeoutError):
                continue  # who works with the store waits for it; what is played goes on
            lacking = step.lost(range(step.total) if found.closed else found.indexes)
        ahead = [name for name, each in versions.items() if each.version > step.number]
        if step.missing and ahead:
            raise StateLostError(
                f"{', '.join(ahead)} finished step {step.number}, the store lost "
                f"{len(step.missing)} of its groups"
            )
        if lacking:
            owner.missing(step, lacking)
