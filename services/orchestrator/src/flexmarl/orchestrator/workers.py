"""The rollout workers: who plays a group, who rests, and who is in trouble.

The choice is a pure function of `balance`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import grpc
import grpc.aio
import structlog

from flexmarl.contracts.v1 import experience_pb2, rollout_pb2, rollout_pb2_grpc
from flexmarl.orchestrator.balance import choose_worker
from flexmarl.orchestrator.calls import fault_of, says
from flexmarl.orchestrator.issue import Fault
from flexmarl.orchestrator.limits import Limits
from flexmarl.runtime.errors import JobFailedError

QUIET_SECONDS = 10.0
"""A worker that goes on failing is not said again."""
SILENT_TIMES = 2
"""From so many on it is told."""

log = structlog.get_logger()


class Workers:
    """The rollout workers and what is outstanding at each."""

    def __init__(self, stubs: dict[str, rollout_pb2_grpc.RolloutAsyncStub], limits: Limits) -> None:
        self._stubs, self._limits = stubs, limits
        self._outstanding: Counter[str] = Counter()
        self._failed_at: dict[str, float] = {}
        self._trouble: dict[str, str] = {}
        """What was said last by those that have not played a group since."""
        self._silent: dict[str, tuple[int, float]] = {}
        """How often in a row one did not answer when it was to store a group that it holds, and
        when it did not last."""
        self.stored = 0
        """Groups that they stored, as they say."""

    def capacity(self, episodes: int) -> int:
        """How many groups of that many episodes may be in flight at once."""
        return max(1, self._limits.episodes_in_flight // episodes) * max(1, len(self._stubs))

    async def run(
        self, request: rollout_pb2.RunGroupRequest
    ) -> tuple[str, rollout_pb2.GroupFinished]:
        """Have one group played: by whom, and what came of it.

        grpc.aio.AioRpcError as it comes. JobFailedError: there is no worker, for too long.
        """
        await self._somebody()
        self._forget_who_left()
        now = time.monotonic()
        resting = {
            worker for worker, at in self._failed_at.items() if now - at < self._limits.resting
        } | {
            worker for worker, (_, at) in self._silent.items() if now - at < 2 * self._limits.place
        }
        here = {worker: self._outstanding[worker] for worker in self._stubs}
        worker = choose_worker(here, resting)
        self._outstanding[worker] += 1
        try:
            finished = await self._stubs[worker].RunGroup(request, timeout=self._limits.group)
        except grpc.aio.AioRpcError as error:
            if fault_of(error) is Fault.PEER:
                self._note(worker, error)
            raise
        else:
            self._trouble.pop(worker, None)
            trains = request.purpose == rollout_pb2.TRAIN
            self.stored += trains and not (request.hold or finished.dropped)
            return worker, finished
        finally:
            self._outstanding[worker] -= 1
            if not self._outstanding[worker]:
                del self._outstanding[worker]

    def _forget_who_left(self) -> None:
        """Whoever has such an address later is another."""
        known: tuple[dict[str, Any], ...] = (self._failed_at, self._trouble, self._silent)
        for book in known:
            for worker in book.keys() - self._stubs.keys():
                del book[worker]

    def away(self) -> list[str]:
        """Workers that cannot play, where none can; those that store nothing of what they hold."""
        self._forget_who_left()
        silent = [
            f"worker at {worker}: did not answer {times} times when it was to store a group"
            for worker, (times, _) in sorted(self._silent.items())
            if times >= SILENT_TIMES
        ]
        if not all(worker in self._trouble for worker in self._stubs):
            return silent
        troubles = (f"worker at {worker}: {self._trouble[worker]}" for worker in self._stubs)
        return sorted(troubles) + silent

    async def place(
        self, worker: str, played: experience_pb2.GroupId, place: experience_pb2.GroupId
    ) -> None:
        """Have a group that `worker` holds stored at `place`; grpc.aio.AioRpcError as it comes."""
        if worker not in self._stubs:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE, nothing, nothing, f"worker {worker} has gone"
            )
        request = rollout_pb2.PlaceGroupRequest(played=played, place=place)
        try:
            await self._stubs[worker].PlaceGroup(request, timeout=self._limits.place)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                times, _ = self._silent.get(worker, (0, 0.0))
                self._silent[worker] = times + 1, time.monotonic()
            raise
        self._silent.pop(worker, None)
        self.stored += 1

    async def _somebody(self) -> None:
        """Return once there is a worker."""
        seconds = self._limits.unreachable
        try:
            async with asyncio.timeout(seconds):
                while not self._stubs:  # noqa: ASYNC110  the directory fills them
                    await asyncio.sleep(self._limits.resting)
        except TimeoutError:
            raise JobFailedError(f"there has been no rollout worker for {seconds:g} s") from None

    def _note(self, worker: str, error: grpc.aio.AioRpcError) -> None:
        """Let the worker rest; said once, however many groups it failed."""
        now = time.monotonic()
        if now - self._failed_at.get(worker, 0.0) > QUIET_SECONDS:
            log.warning(
                "worker fails, its groups are issued again", worker=worker, error=says(error)
            )
        self._failed_at[worker] = now
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:  # no room is no trouble
            self._trouble[worker] = says(error)
