"""Has groups played by the workers, each until it is done.

What is issued when and what a failure is worth are pure functions of `issue`, to whom is `workers`'
to say; this module waits and counts. What a group is for, its owner says.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import grpc.aio
import structlog
from prometheus_client import Counter as Metric

from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.orchestrator.admission import Place
from flexmarl.orchestrator.calls import StoreLostError, fault_of, says
from flexmarl.orchestrator.issue import Fault, decide, pause
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.workers import Workers
from flexmarl.runtime.errors import JobFailedError

GROUPS = Metric(
    "flexmarl_orchestrator_groups_total", "Groups by what became of one try.", ["result"]
)

log = structlog.get_logger()


class Owner(Protocol):
    """What groups are for."""

    def request(self, group: Place) -> rollout_pb2.RunGroupRequest | None:
        """The message of one try, which is sent now; None: the group may not start yet."""

    async def answer(self, group: Place, worker: str, said: rollout_pb2.GroupFinished) -> bool:
        """A worker's answer; False: the group is to be played again, at once."""

    async def hopeless(self, group: Place, reason: str) -> None:
        """Go on without a group that failed by its own fault too often."""


class Groups:
    """Groups on their way to being done. `run` must run while anything waits for them."""

    def __init__(self, owner: Owner, workers: Workers, limits: Limits, *, episodes: int) -> None:
        """`episodes`: of each group."""
        self._owner, self._workers, self._limits = owner, workers, limits
        self._episodes = episodes
        self._waiting: set[Place] = set()
        self._in_flight: dict[Place, asyncio.Task[None]] = {}
        self.reissued: Counter[int] = Counter()
        """Tries beyond the first, by the step of the group."""
        self._failures: Counter[Place] = Counter()
        self._failing_since: dict[Place, float] = {}
        self._attempts: Counter[Place] = Counter()
        self._reasons: dict[Place, str] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()

    def add(self, groups: Iterable[Place]) -> None:
        """Have them played; those that are being played already are not played twice."""
        self._waiting.update(group for group in groups if group not in self._in_flight)
        self._idle.clear()
        self.poke()

    def forget(self, over: Callable[[Place], bool]) -> None:
        """Stop whatever is done for groups that are `over`: they came to be stored anyhow."""
        self._waiting -= {group for group in self._waiting if over(group)}
        for group in [group for group in self._in_flight if over(group)]:
            self._in_flight.pop(group).cancel()
        books: tuple[dict[Place, Any], ...] = (
            self._failures,
            self._failing_since,
            self._attempts,
            self._reasons,
        )
        for known in books:
            for group in [group for group in known if over(group)]:
                del known[group]

    def poke(self) -> None:
        """Look again at who may start."""
        self._wake.set()

    async def idle(self) -> None:
        """Return once everything that was added is done."""
        await self._idle.wait()

    async def run(self) -> None:
        """Play what is added until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                self._start(tasks)
                if not self._waiting and not self._in_flight:
                    self._idle.set()
                await self._wake.wait()

    def _start(self, tasks: asyncio.TaskGroup) -> None:
        todo = decide(self._waiting, self._failures, tries=self._limits.group_tries)
        room = self._workers.capacity(self._episodes) - len(self._in_flight)
        for group in todo.hopeless:
            self._waiting.discard(group)
            self._in_flight[group] = tasks.create_task(self._give_up(group))
        for group in todo.go:
            if room <= 0:
                break
            request = self._owner.request(group)
            if request is not None:  # else it keeps none behind it from starting
                room -= 1
                self._waiting.discard(group)
                self._in_flight[group] = tasks.create_task(self._play(group, request))

    def _leave(self, group: Place, *, again: bool) -> None:
        known = self._in_flight.pop(group, None) is not None  # else it was forgotten
        if again and known:
            self._waiting.add(group)
        self._wake.set()

    async def _play(self, group: Place, request: rollout_pb2.RunGroupRequest) -> None:
        again = True
        try:
            worker, finished = await self._workers.run(request)
        except grpc.aio.AioRpcError as error:
            GROUPS.labels("failed").inc()
            await self.failed(group, error)
        else:
            GROUPS.labels(_result(finished)).inc()
            self._failing_since.pop(group, None)
            self._attempts.pop(group, None)
            self._failures.pop(group, None)  # played again, it is another task
            again = not await self._owner.answer(group, worker, finished)
        finally:
            self._leave(group, again=again)

    async def failed(self, group: Place, error: grpc.aio.AioRpcError) -> None:
        """Count the failure and wait as long as the next try should."""
        self._reasons[group] = says(error)
        self._attempts[group] += 1
        self.reissued[group[0]] += 1
        step, index = group
        match fault_of(error):
            case Fault.FATAL:
                raise JobFailedError(f"a worker refuses to play: {says(error)}") from error
            case Fault.FENCED:
                raise StoreLostError(f"group {index} was refused: {says(error)}") from error
            case Fault.GROUP:
                final = error.code() is grpc.StatusCode.INVALID_ARGUMENT
                self._failures[group] += self._limits.group_tries if final else 1
                log.warning("group failed", step=step, index=index, error=says(error), final=final)
            case Fault.PEER if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                # No room: it lasts as long as training does, and that is nobody's failure.
                self._failing_since.pop(group, None)
                log.info("group waits for room", step=step, index=index, reason=says(error))
            case Fault.PEER:
                now = time.monotonic()
                since = self._failing_since.setdefault(group, now)
                if now - since > self._limits.unreachable:
                    raise JobFailedError(
                        f"group {index} of step {step} could not be played for "
                        f"{self._limits.unreachable:g} s; last: {says(error)}"
                    ) from error
                log.debug("group waits to be played again", step=step, index=index)
        if self._failures[group] < self._limits.group_tries:
            await asyncio.sleep(pause(self._attempts[group]))

    async def _give_up(self, group: Place) -> None:
        try:
            reason, (step, index) = self._reasons[group], group
            log.error(
                "group is given up",
                step=step,
                index=index,
                tries=self._failures[group],
                error=reason,
            )
            GROUPS.labels("given-up").inc()
            await self._owner.hopeless(group, reason)
            self._failures.pop(group, None)
        finally:
            self._leave(group, again=False)


def _result(finished: rollout_pb2.GroupFinished) -> str:
    if finished.dropped:
        return "dropped"
    return "duplicate" if finished.duplicate else "played"
