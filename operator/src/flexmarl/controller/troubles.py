"""Reads what is only asked for when something is wrong: events of failures, room on nodes.

Each is listed for all jobs together, and at most so often; without the right to it nothing is said.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from flexmarl.controller.capacity import Rooms, rooms
from flexmarl.controller.cluster import Cluster, RefusedError

EVENTS_SECONDS, ROOMS_SECONDS = 5.0, 20.0
FORBIDDEN_SECONDS = 600.0
"""After so long a right is asked for again."""

log = structlog.get_logger()


class Troubles:
    def __init__(self, cluster: Cluster, namespaces: Sequence[str]) -> None:
        self._cluster, self._namespaces = cluster, namespaces
        self._alone = asyncio.Lock()
        self._failures: dict[str, tuple[float, Mapping[str, str]]] = {}
        """By namespace: until when it holds, and why objects of these uids make no pods."""
        self._rooms: tuple[float, Rooms | None] = 0.0, None

    async def failures(self, namespace: str) -> Mapping[str, str]:
        """Uid of a workload -> why it cannot make a pod, in the API server's words."""
        async with self._alone:
            until, known = self._failures.get(namespace, (0.0, {}))
            if time.monotonic() < until:
                return known
            pause = EVENTS_SECONDS
            try:
                found = await self._cluster.listed(
                    "Event", namespace, fields="type=Warning,reason=FailedCreate"
                )
                known = {
                    one["involvedObject"].get("uid", ""): str(one.get("message", ""))
                    for one in sorted(found, key=_moment)
                }
            except RefusedError as error:
                known, pause = {}, _pause(error)
            self._failures[namespace] = time.monotonic() + pause, known
            return known

    async def rooms(self) -> Rooms | None:
        """None: the controller may not know."""
        async with self._alone:
            until, known = self._rooms
            if time.monotonic() < until:
                return known
            pause = ROOMS_SECONDS
            try:
                nodes = await self._cluster.listed("Node")
                everywhere: list[str | None] = [*self._namespaces] or [None]
                pods = [
                    pod
                    for namespace in everywhere
                    for pod in await self._cluster.listed("Pod", namespace)
                ]
                known = rooms(nodes, pods, exact=not self._namespaces)
            except RefusedError as error:
                known, pause = None, _pause(error)
            self._rooms = time.monotonic() + pause, known
            return known


def _pause(error: RefusedError) -> float:
    """RefusedError: it was not for want of a right."""
    if error.status != 403:
        raise error
    log.info("not allowed", error=str(error))
    return FORBIDDEN_SECONDS


def _moment(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
