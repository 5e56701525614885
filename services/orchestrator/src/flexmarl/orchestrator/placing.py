"""Partial rollouts: whole groups wait here for their places, and go there.

Which place is `draws`' to say. Which draw lies there stands beside it in the store, so that a
restart knows.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection
from typing import Protocol

import grpc
import grpc.aio

from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.orchestrator.admission import Place
from flexmarl.orchestrator.calls import fault_of
from flexmarl.orchestrator.draws import Draws
from flexmarl.orchestrator.issue import Fault, pause

PLACE_TRIES = 8
"""Of a worker that does not answer: it may be restarting, and then has forgotten the group."""
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
"""The store is: the worker says so before the call's deadline, and keeps the group for as long as
it takes."""
SILENT = grpc.StatusCode.DEADLINE_EXCEEDED
"""The worker is: no fault of the group that it holds."""

Said = rollout_pb2.GroupFinished | str
"""A worker's answer, or why the group was given up."""


class Owner(Protocol):
    """What places are for."""

    @property
    def version(self) -> int:
        """At which the job stands."""

    async def store(self, worker: str, draw: int, place: Place) -> None:
        """Have the worker that holds the draw store it; grpc.aio.AioRpcError as it comes."""

    async def store_empty(self, draw: int, place: Place) -> None:
        """A draw that was given up teaches nobody anything."""

    def placed(self, draw: int, place: Place, said: Said) -> None:
        """The draw is stored there."""

    async def lost(self, draw: int, place: Place, error: grpc.aio.AioRpcError) -> None:
        """Its worker cannot store it any more."""


class Placing:
    """Use `run` while anything waits."""

    def __init__(self, owner: Owner, draws: Draws) -> None:
        self._owner, self._draws = owner, draws
        self._held: dict[int, tuple[str, Said]] = {}
        self._wake = asyncio.Event()

    def whole(self, draw: int, worker: str, said: Said) -> None:
        """That draw is whole, and `worker` holds it."""
        oldest = 0 if isinstance(said, str) else said.oldest_version
        self._draws.finish(draw, oldest, self._owner.version)
        self._held[draw] = worker, said
        self.look()

    def look(self) -> None:
        """Look again at who may have a place."""
        self._wake.set()

    def forget(self, known: Collection[int]) -> None:
        """Other draws are over: what was to be stored of them lies in the store already."""
        for draw in self._held.keys() - set(known):
            del self._held[draw]

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while (found := self._draws.place()) is not None:
                    tasks.create_task(self._store(*found))

    async def _store(self, draw: int, place: Place) -> None:
        if draw not in self._held:
            return  # its step was trained meanwhile
        worker, said = self._held.pop(draw)
        if isinstance(said, str):
            await self._owner.store_empty(draw, place)
        else:
            error = await self._stored(worker, draw, place)
            if error is not None:
                await self._owner.lost(draw, place, error)
                return
        self._owner.placed(draw, place, said)
        self.look()

    async def _stored(self, worker: str, draw: int, place: Place) -> grpc.aio.AioRpcError | None:
        """Have it stored, as often as there is hope; the last error if it could not be."""
        failures = 0
        for attempt in itertools.count(1):
            try:
                await self._owner.store(worker, draw, place)
                return None
            except grpc.aio.AioRpcError as error:
                if error.code() is not FULL:
                    failures += 1
                    may_return = error.code() is SILENT or fault_of(error) is Fault.PEER
                    if not may_return or failures >= PLACE_TRIES:
                        return error
                await asyncio.sleep(pause(attempt))
        raise AssertionError
