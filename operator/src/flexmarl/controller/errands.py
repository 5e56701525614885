"""What a look has done beside it: a pod or a node is asked, which may be gone, or all of them.

Looks wait for none of it, so that no other job's does. One job has each kind at most once at a
time, so there are never more than jobs to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeAlias

import structlog

from flexmarl.controller.cache import Key

Act: TypeAlias = Callable[[], Awaitable[bool]]
"""Answers whether its job is to be looked at."""


class Errand(StrEnum):
    SAVE = "save"
    EVIDENCE = "evidence"
    FETCHES = "fetches"
    ROOMS = "rooms"


MOST = {Errand.SAVE: 16, Errand.EVIDENCE: 4, Errand.FETCHES: 8, Errand.ROOMS: 1}
"""Jobs at a time. Evidence is held in memory until it is written."""

log = structlog.get_logger()


class Errands:
    def __init__(self) -> None:
        self._acts: dict[tuple[Errand, Key], Act] = {}
        self._queues: dict[Errand, asyncio.Queue[Key]] = {kind: asyncio.Queue() for kind in Errand}

    @property
    def busy(self) -> bool:
        """Whether one waits or is under way."""
        return bool(self._acts)

    def begin(self, kind: Errand, key: Key, act: Act) -> None:
        """Unless the same waits or is under way."""
        if (kind, key) not in self._acts:
            self._acts[kind, key] = act
            self._queues[kind].put_nowait(key)

    async def work(self, kind: Errand, wake: Callable[[Key], None]) -> None:
        """One after the other, until cancelled."""
        while True:
            key = await self._queues[kind].get()
            try:
                news = await self._acts[kind, key]()
            except Exception:  # the border: one job's trouble is not another's
                log.exception("errand failed", kind=kind, job=f"{key.namespace}/{key.name}")
                news = False
            finally:
                del self._acts[kind, key]
            if news:
                wake(key)
