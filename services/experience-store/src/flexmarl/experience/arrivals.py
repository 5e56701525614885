"""Waiting for something new without a connection per waiter: one subscription for all of them.

What this process stored itself it knows at once; the subscription tells of others. A message may be
lost while it is down, or not be sent to one that has just begun to listen: nobody waits for longer
than `POLL_SECONDS` before looking again.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from flexmarl.experience.connection import ANSWER_SECONDS
from flexmarl.experience.moments import now

POLL_SECONDS = 1.0
ASK_SECONDS = 0.25
"""Between questions whether anybody else listens, while nobody does."""
log = structlog.get_logger()


class Arrivals:
    """What a waiter does: `event = next()`, look, and `wait(event)` when there was nothing.

    In this order nothing that arrives between looking and waiting is missed.
    """

    def __init__(self, redis: Redis, channel: str) -> None:
        self._redis, self._channel = redis, channel
        self._event = asyncio.Event()
        self._released = False
        self._mine = secrets.token_hex(4)
        self._listens = False
        self._told_until = 0.0
        """Before this moment nobody else listens, or they look by themselves."""
        self.count = 0
        """Of arrivals so far: as long as it stays the same, nothing new is known of."""

    def next(self) -> asyncio.Event:
        """Set at the next arrival."""
        return self._event

    @property
    def released(self) -> bool:
        """Whether nobody shall wait any more."""
        return self._released

    def message(self) -> tuple[str, str] | None:
        """What to publish where, to tell others of what this process is about to store."""
        return (self._channel, self._mine) if now() >= self._told_until else None

    def told(self, listeners: int) -> None:
        """So many had it, perhaps this process alone, which would read each of its own."""
        if listeners <= self._listens:
            self._told_until = now() + ASK_SECONDS

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Return at the arrival, or after `seconds`, or when it is time to look again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, POLL_SECONDS)):
                await event.wait()

    def release(self) -> None:
        """From now on nobody waits: the process is about to stop."""
        self._released = True
        self.wake()

    def wake(self) -> None:
        """Something arrived, or may have."""
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def watch(self) -> None:
        """Turn messages into wake-ups until cancelled."""
        down, mine = False, self._mine.encode()
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as messages:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await messages.subscribe(self._channel)
                    self._listens = True
                    self.wake()  # nobody told of what came before
                    while True:
                        told = await messages.get_message(timeout=POLL_SECONDS)
                        if told and told["data"] != mine:
                            self.wake()
                        if down:
                            log.info("store is back")
                            down = False
            except (RedisError, OSError) as error:
                if not down:
                    log.warning("store does not answer, leases poll", error=str(error))
                down, self._listens = True, False
                await asyncio.sleep(POLL_SECONDS / 4)
