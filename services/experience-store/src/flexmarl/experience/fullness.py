"""Whether a full store will ever have room again.

Memory is freed when a step is whole and trained. While the oldest one lacks a group that does not
fit any more, nobody will free any.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from redis.asyncio import Redis

from flexmarl.experience.connection import translated
from flexmarl.runtime.errors import JobFailedError

STUCK_SECONDS = 1.0
"""A store is too small when it was full for this long with nothing in it that may go."""
WAITING_SECONDS = 5.0
"""Whoever waits for room asks more often than that."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of the server, in bytes."""

    used: int
    most: int


class Fullness:
    """`alone`: nobody else keeps anything in the server, so that nothing else may go either."""

    def __init__(self, redis: Redis, *, alone: bool) -> None:
        self._redis, self._alone = redis, alone
        self._too_small: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stuck: tuple[int, float] | None = None
        self._refused: float | None = None
        """When a group found no room last, and none has found any since."""

    async def judged(self) -> None:
        """Until cancelled; JobFailedError once the memory cannot hold a single step."""
        await asyncio.shield(self._too_small)

    def over(self) -> None:
        """Something found room."""
        self._stuck = self._refused = None

    async def full(self) -> Memory | None:
        """While groups wait for room."""
        now = asyncio.get_running_loop().time()
        if self._refused is None or now - self._refused > WAITING_SECONDS:
            return None
        return await self._memory()

    async def met(self, step: int, *, oldest: int, stored: int) -> None:
        """A group of `step` found none: of `oldest`, the first step that is not closed, nothing may
        go before it is whole; `stored` groups of `step` are there."""
        now = self._refused = asyncio.get_running_loop().time()
        if not self._alone or self._too_small.done() or oldest < step:
            self._stuck = None
        elif self._stuck is None or self._stuck[0] != step:
            self._stuck = step, now  # what a commit frees may come a moment later
        elif now - self._stuck[1] >= STUCK_SECONDS:
            most = (await self._memory()).most
            if not self._too_small.done():
                self._too_small.set_exception(
                    JobFailedError(
                        f"the store's {most >> 20} MiB are full after {stored} groups of step "
                        f"{step}, and none can go before the step is whole: raise "
                        "spec.store.maxMemoryMib"
                    )
                )

    async def _memory(self) -> Memory:
        async with translated():
            said = await self._redis.info("memory")
        return Memory(int(said["used_memory"]), int(said["maxmemory"]))
