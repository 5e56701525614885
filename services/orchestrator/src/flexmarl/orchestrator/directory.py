"""Who plays and who generates: connections to workers and engines, which come and go on a cluster.

On one machine they are known from the start. On a cluster the addresses behind DNS names are looked
up again and again: those are the pods that are ready. Trainers are not here, they keep their names.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import structlog

from flexmarl.contracts.v1 import engine_pb2_grpc, rollout_pb2_grpc
from flexmarl.runtime.grpc import channel
from flexmarl.runtime.settings import Discovery

SECONDS = 1.0
"""Between two looks."""
LEAVING_SECONDS = 300.0
"""What is in flight to one that is not listed any more may take so long: it may be draining."""
NOBODY = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
"""Answers of a resolver that mean: there is no ready pod."""

log = structlog.get_logger()


@dataclass(slots=True)
class Members:
    """The processes of one kind; `stub` makes what calls them."""

    stub: Callable[[grpc.aio.Channel], Any]
    stubs: dict[str, Any] = field(default_factory=dict)
    """By address: those that are there. The same mapping for as long as the job runs."""
    channels: dict[str, grpc.aio.Channel] = field(default_factory=dict)


class Directory:
    """`watch` must run while the job does; `changed` is called when somebody came or went."""

    def __init__(
        self,
        token: str,
        policies: Iterable[str],
        discovery: Discovery | None = None,
        *,
        pools: Iterable[str] = (),
        workers: Iterable[str] = (),
        engines: Mapping[str, list[str]] | None = None,
    ) -> None:
        """`policies` with engines of their own and `pools` of engines; `engines` by either."""
        self.changed: Callable[[], None] = lambda: None
        self._token, self._discovery = token, discovery
        self._workers = Members(rollout_pb2_grpc.RolloutStub)
        self._engines = {policy: Members(engine_pb2_grpc.EngineStub) for policy in policies}
        self._pools = {pool: Members(engine_pb2_grpc.EngineStub) for pool in pools}
        self._known_workers, self._known_engines = list(workers), engines or {}
        self._leaving: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    @property
    def workers(self) -> dict[str, rollout_pb2_grpc.RolloutAsyncStub]:
        return self._workers.stubs

    @property
    def engines(self) -> dict[str, dict[str, engine_pb2_grpc.EngineAsyncStub]]:
        return {policy: members.stubs for policy, members in self._engines.items()}

    @property
    def pools(self) -> dict[str, dict[str, engine_pb2_grpc.EngineAsyncStub]]:
        return {pool: members.stubs for pool, members in self._pools.items()}

    @property
    def worker_channels(self) -> dict[str, grpc.aio.Channel]:
        """Like `workers`, for what else they serve."""
        return self._workers.channels

    def open(self) -> None:
        """Connect to those that are known from the start."""
        if self._discovery is None:
            self._set(self._workers, self._known_workers)
            for name, members in (self._engines | self._pools).items():
                self._set(members, self._known_engines[name])

    async def close(self) -> None:
        for members in (self._workers, *self._engines.values(), *self._pools.values()):
            for one in members.channels.values():
                await one.close()
        leaving = dict(self._leaving)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        for one in leaving.values():
            await one.close()

    async def watch(self) -> None:
        """Until cancelled, look who is there."""
        if self._discovery is None:
            return
        while True:
            await self.look()
            await asyncio.sleep(SECONDS)

    async def look(self) -> None:
        """Once."""
        found = self._discovery
        if found is None:
            return
        news = self._set(self._workers, await addresses(found.workers))
        named = found.engines | found.pools
        for name, members in (self._engines | self._pools).items():
            if name in named:
                news |= self._set(members, await addresses(named[name]))
        if news:
            self.changed()

    def missing(self) -> list[str]:
        """What there is none of, in words."""
        lacking = [] if self._workers.stubs else ["a worker"]
        return lacking + [
            f"an engine of {name}"
            for name, members in (self._engines | self._pools).items()
            if not members.stubs
        ]

    def _set(self, members: Members, listed: Iterable[str] | None) -> bool:
        """Whether somebody came or went; None: nobody can say."""
        if listed is None:
            return False
        now = set(listed)
        gone, come = members.channels.keys() - now, now - members.channels.keys()
        for address in sorted(gone):
            log.info("left", address=address)
            del members.stubs[address]
            left = members.channels.pop(address)
            task = asyncio.create_task(_close_later(left))
            self._leaving[task] = left
            task.add_done_callback(self._leaving.pop)
        for address in sorted(come):
            if self._discovery is not None:
                log.info("found", address=address)
            members.channels[address] = opened = channel(address, self._token)
            members.stubs[address] = members.stub(opened)
        return bool(gone or come)


async def _close_later(left: grpc.aio.Channel) -> None:
    """Not by the channel's own grace: a close that is cancelled leaves calls as they are for good,
    and one that comes after it does nothing."""
    await asyncio.sleep(LEAVING_SECONDS)
    await left.close()


async def addresses(name: str) -> list[str] | None:
    """All that `host:port` stands for; None: the resolver does not answer."""
    host, _, port = name.rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM
        )
    except socket.gaierror as error:
        return [] if error.errno in NOBODY else None
    hosts = {str(entry[4][0]) for entry in found}
    return sorted(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts)
