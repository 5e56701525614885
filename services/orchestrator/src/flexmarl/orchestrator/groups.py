"""Has the groups of one step or evaluation played by the workers, each until it is done.

What is issued when, to whom, and what a failure is worth are pure functions of `issue` and
`balance`; this module calls, waits and counts.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

import grpc.aio
import structlog
from prometheus_client import Counter as Metric

from flexmarl.contracts.v1 import rollout_pb2, rollout_pb2_grpc
from flexmarl.orchestrator.balance import choose_worker
from flexmarl.orchestrator.calls import StoreLostError, fault_of, says
from flexmarl.orchestrator.issue import Fault, decide, pause
from flexmarl.orchestrator.limits import Limits
from flexmarl.runtime.errors import JobFailedError

GROUPS = Metric(
    "flexmarl_orchestrator_groups_total", "Groups by what became of one try.", ["result"]
)

Request = Callable[[int], rollout_pb2.RunGroupRequest]
Answer = Callable[[int, rollout_pb2.GroupFinished], None]
Hopeless = Callable[[int, str], Awaitable[None]]
Stored = Callable[[], Awaitable[Iterable[int]]]

QUIET_SECONDS = 10.0
"""A worker that goes on failing is not said again."""

log = structlog.get_logger()


class Workers:
    """The rollout workers and what is outstanding at each."""

    def __init__(self, stubs: dict[str, rollout_pb2_grpc.RolloutAsyncStub], limits: Limits) -> None:
        self._stubs, self._limits = stubs, limits
        self._outstanding = dict.fromkeys(stubs, 0)
        self._failed_at: dict[str, float] = {}

    def capacity(self, episodes: int) -> int:
        """How many groups of that many episodes may be in flight at once."""
        return max(1, self._limits.episodes_in_flight // episodes) * len(self._stubs)

    async def run(
        self, request: rollout_pb2.RunGroupRequest, seconds: float
    ) -> rollout_pb2.GroupFinished:
        """Have one group played; grpc.aio.AioRpcError as it comes."""
        now = time.monotonic()
        resting = {
            worker for worker, at in self._failed_at.items() if now - at < self._limits.resting
        }
        worker = choose_worker(self._outstanding, resting)
        self._outstanding[worker] += 1
        try:
            return await self._stubs[worker].RunGroup(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            if fault_of(error) is Fault.PEER:
                self._note(worker, error)
            raise
        finally:
            self._outstanding[worker] -= 1

    def _note(self, worker: str, error: grpc.aio.AioRpcError) -> None:
        """Let the worker rest; said once, however many groups it failed."""
        now = time.monotonic()
        if now - self._failed_at.get(worker, 0.0) > QUIET_SECONDS:
            log.warning(
                "worker fails, its groups are issued again", worker=worker, error=says(error)
            )
        self._failed_at[worker] = now


class Groups:
    """Indexes 0..total-1 on their way to being done.

    `request(index)` makes a try's message, `answer` gets what a worker said of a group, `hopeless`
    stores one that failed by its own fault too often. `done` are not played at all.
    """

    def __init__(
        self,
        workers: Workers,
        limits: Limits,
        *,
        total: int,
        episodes: int,
        seconds: float,
        request: Request,
        answer: Answer,
        hopeless: Hopeless,
        done: Iterable[int] = (),
    ) -> None:
        self._workers, self._limits = workers, limits
        self.total, self._seconds = total, seconds
        self._capacity = workers.capacity(episodes)
        self._request, self._answer, self._hopeless = request, answer, hopeless
        self.done = set(done)
        self.reissued = 0
        self._in_flight: set[int] = set()
        self._answered: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._failing_since: dict[int, float] = {}
        self._attempts: Counter[int] = Counter()
        self._reasons: dict[int, str] = {}
        self._wake = asyncio.Event()
        self.complete = asyncio.Event()
        """Every group is done; cleared again when the store turns out to lack one."""

    async def run(self, stored: Stored | None = None) -> None:
        """Play until all are done.

        With `stored` go on until cancelled: every `Limits.confirm` seconds after completion ask
        what the store holds, and play what it lacks.
        """
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._start(tasks)
                if len(self.done) < self.total:
                    await self._wake.wait()
                    self._wake.clear()
                    continue
                self.complete.set()
                if stored is None:
                    return
                await asyncio.sleep(self._limits.confirm)
                self._lost(set(await stored()))

    def _start(self, tasks: asyncio.TaskGroup) -> None:
        todo = decide(
            self.total,
            self.done,
            self._in_flight,
            self._failures,
            tries=self._limits.group_tries,
            capacity=self._capacity,
        )
        self._in_flight.update(todo.indexes, todo.hopeless)
        for index in todo.indexes:
            tasks.create_task(self._play(index))
        for index in todo.hopeless:
            tasks.create_task(self._give_up(index))

    def _lost(self, stored: set[int]) -> None:
        lacking = self.done - stored
        if lacking:
            log.warning("groups are missing in the store and played again", indexes=sorted(lacking))
            self.done -= lacking
            self.reissued += len(lacking)
            self.complete.clear()

    async def _play(self, index: int) -> None:
        try:
            finished = await self._workers.run(self._request(index), self._seconds)
        except grpc.aio.AioRpcError as error:
            GROUPS.labels("failed").inc()
            await self._failed(index, error)
        else:
            GROUPS.labels("duplicate" if finished.duplicate else "played").inc()
            self._failing_since.pop(index, None)
            self._attempts.pop(index, None)
            self.done.add(index)
            if index not in self._answered:  # one that was lost and played again counts once
                self._answered.add(index)
                self._answer(index, finished)
        finally:
            self._in_flight.discard(index)
            self._wake.set()

    async def _failed(self, index: int, error: grpc.aio.AioRpcError) -> None:
        """Count the failure and wait as long as the next try should."""
        self._reasons[index] = says(error)
        self._attempts[index] += 1
        self.reissued += 1
        match fault_of(error):
            case Fault.FATAL:
                raise JobFailedError(f"a worker refuses to play: {says(error)}") from error
            case Fault.FENCED:
                raise StoreLostError(f"group {index} was refused: {says(error)}") from error
            case Fault.GROUP:
                final = error.code() is grpc.StatusCode.INVALID_ARGUMENT
                self._failures[index] += self._limits.group_tries if final else 1
                log.warning("group failed", index=index, error=says(error), final=final)
            case Fault.PEER:
                now = time.monotonic()
                since = self._failing_since.setdefault(index, now)
                if now - since > self._limits.unreachable:
                    raise JobFailedError(
                        f"group {index} could not be played for {self._limits.unreachable:g} s; "
                        f"last: {says(error)}"
                    ) from error
                log.debug("group waits to be played again", index=index, error=says(error))
        if self._failures[index] < self._limits.group_tries:
            await asyncio.sleep(pause(self._attempts[index]))

    async def _give_up(self, index: int) -> None:
        try:
            reason = self._reasons[index]
            log.error("group is given up", index=index, tries=self._failures[index], error=reason)
            GROUPS.labels("given-up").inc()
            await self._hopeless(index, reason)
            self.done.add(index)
        finally:
            self._in_flight.discard(index)
            self._wake.set()
