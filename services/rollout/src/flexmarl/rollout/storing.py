"""What was played goes to the store, however long that is away.

Its client gives up after a while; here groups wait on, as they do while it is full. What bounds
them is what bounds groups in the worker, however they wait.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import structlog

from flexmarl.experience.samples import GroupId, PolicySamples
from flexmarl.runtime.errors import UnavailableError

AGAIN_SECONDS = 1.0
"""At most, between two tries of a client that has given up."""
log = structlog.get_logger()


class Store(Protocol):
    """What is needed of `flexmarl.experience.client.ExperienceClient`."""

    async def append_group(
        self,
        group: GroupId,
        task_id: str,
        samples: Iterable[PolicySamples],
        note: bytes = b"",
        *,
        played: float | None = None,
    ) -> bool: ...


class Storing:
    def __init__(self, store: Store, check: Callable[[GroupId], None]) -> None:
        """`check` raises what makes a group useless meanwhile."""
        self._store, self._check = store, check
        self._away = False

    async def append(
        self,
        group: GroupId,
        task_id: str,
        samples: Sequence[PolicySamples],
        note: bytes,
        *,
        played: float | None = None,
    ) -> bool:
        """As `Store.append_group`, but no outage ends it."""
        while True:
            try:
                stored = await self._store.append_group(
                    group, task_id, samples, note, played=played
                )
            except UnavailableError as error:
                if not self._away:
                    log.warning("the store is away, what was played waits", error=str(error))
                self._away = True
            else:
                if self._away:
                    log.info("the store is back")
                self._away = False
                return stored
            await asyncio.sleep(AGAIN_SECONDS * random.uniform(0.5, 1.0))  # not all at once
            self._check(group)
