"""The engines that a worker knows: a client for each, and what was said about them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from types import TracebackType
from typing import Any, Self

import structlog
from prometheus_client import Counter

from flexmarl.rollout.engine_client import EngineClient

log = structlog.get_logger()
BAD_ANSWERS = Counter(
    "flexmarl_rollout_bad_answers_total", "Answers of engines that break a rule, as NaN log-probs."
)

RETRY_SECONDS = 120.0
"""How long an engine may be away: a restart loads libraries and weights."""
MOST_CLIENTS = 256


class EnginePool:
    """A client per engine address, made when first asked for. Use as `async with`."""

    def __init__(
        self, token: str, call_seconds: float, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        self.retry_seconds = retry_seconds
        self._token, self._call_seconds = token, call_seconds
        self._clients: dict[str, EngineClient] = {}
        self._away: set[str] = set()
        self._wrong: set[str] = set()
        self._group = asyncio.TaskGroup()
        self._context = copy_context()
        self._closing = False
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        for task in self._running:
            task.cancel()
        try:
            if isinstance(error, asyncio.CancelledError):
                await self._group.__aexit__(kind, error, trace)
            else:  # an error of the block goes on as it is, not inside a group
                await self._group.__aexit__(None, None, None)
        finally:
            for client in self._clients.values():
                await client.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closing:  # a last abort: the engine notices that its call is gone
            work.close()
            return
        # Calls carry turns of many groups: what they log must not name that of one.
        task = self._group.create_task(work, context=self._context.copy())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def client(self, address: str) -> EngineClient:
        found = self._clients.get(address)
        if found is None:
            if len(self._clients) >= MOST_CLIENTS:
                self._forget_one()
            found = EngineClient(address, self._token, self._spawn, self._call_seconds)
            self._clients[address] = found
        return found

    def mark_away(self, address: str, why: str) -> None:
        """Said once, however many turns notice."""
        if address not in self._away:
            self._away.add(address)
            log.warning("engine away", address=address, why=why)

    def mark_back(self, address: str) -> None:
        if self._away and address in self._away:
            self._away.discard(address)
            log.info("engine back", address=address)

    def mark_wrong(self, address: str, why: str) -> None:
        """Said once, however often it happens; all are counted."""
        BAD_ANSWERS.inc()
        if address not in self._wrong:
            self._wrong.add(address)
            log.error("engine answers wrongly", address=address, why=why)

    def _forget_one(self) -> None:
        """Engines come and go: the longest known idle client makes room."""
        for address, client in self._clients.items():
            if client.idle:
                del self._clients[address]
                self._away.discard(address)
                self._wrong.discard(address)
                self._spawn(client.close())
                return
