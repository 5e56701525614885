"""Reads what is only asked for when something is wrong: events of failures, room on nodes.

Each is listed for all jobs together, and at most so often; without the right to it nothing is said.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import structlog

from flexmarl.controller.capacity import Room, Rooms, empty, occupy
from flexmarl.controller.cluster import Cluster, RefusedError
from flexmarl.controller.nodes import node
from flexmarl.controller.observed import Node

EVENTS_SECONDS, ROOMS_SECONDS, NODE_SECONDS = 5.0, 20.0, 9.0
ROOMS_SHARE = 0.05
"""Of the time may go into reading nodes and pods, of which a cluster has many thousands."""
PLACED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Pods that take room."""
UNMOUNTED = ("FailedAttachVolume", "FailedMount", "FailedCreatePodSandBox")
SUMMARY = "Unable to attach or mount volumes"
"""How the event begins that says least."""
FORBIDDEN_SECONDS = 600.0
"""After so long a right is asked for again."""

log = structlog.get_logger()


class Troubles:
    def __init__(self, cluster: Cluster, namespaces: Sequence[str]) -> None:
        self._cluster, self._namespaces = cluster, namespaces
        self._reading, self._counting = asyncio.Lock(), asyncio.Lock()
        self._said: dict[tuple[str, ...], tuple[float, Mapping[str, str]]] = {}
        """By namespace and reasons: until when it holds, and what events say of these uids."""
        self._rooms: tuple[float, Rooms | None] = 0.0, None
        self._asking, self._mute = asyncio.Lock(), 0.0
        """Until when no node is asked for."""
        self._nodes: dict[str, tuple[float, Node | None]] = {}
        """Until when it holds, and what it is."""

    async def failures(self, namespace: str) -> Mapping[str, str]:
        """Uid of a workload -> why it cannot make a pod, in the API server's words."""
        return await self._events(namespace, "FailedCreate")

    async def unmounted(self, namespace: str) -> Mapping[str, str]:
        """Uid of a pod -> why nothing is set up for it, in the words of its node."""
        return await self._events(namespace, *UNMOUNTED)

    async def nodes(self, names: Collection[str]) -> Mapping[str, Node | None]:
        """Those of these names that can be asked for."""
        async with self._asking:
            now = time.monotonic()
            self._nodes = {name: one for name, one in self._nodes.items() if now < one[0]}
            for name in sorted({*names} - self._nodes.keys()):
                if now < self._mute:
                    break
                try:
                    listed = await self._cluster.listed("Node", fields=f"metadata.name={name}")
                except RefusedError as error:
                    self._mute = now + _pause(error)
                    break
                found = node(listed[0]) if listed else None
                self._nodes[name] = now + NODE_SECONDS, found
            return {name: self._nodes[name][1] for name in names if name in self._nodes}

    async def _events(self, *about: str) -> Mapping[str, str]:
        """A namespace, and reasons."""
        async with self._reading:
            until, known = self._said.get(about, (0.0, {}))
            if time.monotonic() < until:
                return known
            pause = EVENTS_SECONDS
            try:
                known = await self._why(*about)
            except RefusedError as error:
                known, pause = {}, _pause(error)
            self._said[about] = time.monotonic() + pause, known
            return known

    @property
    def rooms(self) -> Rooms | None:
        """As they were counted last; None: not lately, or the controller may not know."""
        until, rooms = self._rooms
        return rooms if time.monotonic() < until + ROOMS_SECONDS else None

    @property
    def counted(self) -> bool:
        """Whether that still holds."""
        return time.monotonic() < self._rooms[0]

    async def count(self) -> None:
        """Unless that still holds. It takes long where there are many pods."""
        async with self._counting:
            if self.counted:
                return
            began, pause = time.monotonic(), ROOMS_SECONDS
            known: Rooms | None = None
            try:
                known = await self._left()
                pause = max(pause, (time.monotonic() - began) / ROOMS_SHARE)
            except RefusedError as error:
                pause = _pause(error)
            self._rooms = time.monotonic() + pause, known

    async def _why(self, namespace: str, *reasons: str) -> Mapping[str, str]:
        best: dict[str, tuple[bool, str, str]] = {}
        for reason in reasons:
            fields = f"type=Warning,reason={reason}"
            async for page in self._cluster.pages("Event", namespace, fields=fields):
                for one in page:
                    uid, message = one["involvedObject"].get("uid", ""), str(one.get("message", ""))
                    said = not message.startswith(SUMMARY), _moment(one), message
                    best[uid] = max(best.get(uid, said), said)
        return {uid: message for uid, (_, _, message) in best.items()}

    async def _left(self) -> Rooms:
        nodes: dict[str, Room] = {}
        async for page in self._cluster.pages("Node"):
            nodes |= empty(page)
        everywhere: list[str | None] = [*self._namespaces] or [None]
        for namespace in everywhere:
            async for page in self._cluster.pages("Pod", namespace, fields=PLACED):
                occupy(nodes, page)
        return Rooms(tuple(nodes.values()), exact=not self._namespaces)


def _pause(error: RefusedError) -> float:
    """RefusedError: it was not for want of a right."""
    if error.status != 403:
        raise error
    log.info("not allowed", error=str(error))
    return FORBIDDEN_SECONDS


def _moment(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
