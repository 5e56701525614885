"""Has the engines of pools serve whoever needs them, and tells the workers who serves whom.

What is decided is `sharing`'s; here the backlogs are asked for, which is what the workers' turns
that want an engine are, and engines are bound. Workers learn at once who serves a policy now, so
that groups in flight come to engines that were not ready when they were issued. Where pools are
shared they are asked every `Limits.tell_every` seconds anyway; else until all have heard.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Mapping
from pathlib import Path

import grpc.aio
import structlog
from prometheus_client import Counter as Metric

from flexmarl.contracts.cluster import BalancingSpec
from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.problems import JobFileError
from flexmarl.contracts.reading import served_job
from flexmarl.contracts.v1 import routing_pb2, routing_pb2_grpc
from flexmarl.orchestrator.desk import Desk
from flexmarl.orchestrator.engines import Engines
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.sharing import (
    Books,
    Rules,
    bind_engines,
    settled_scale,
    wanted_scale,
)

BINDINGS = Metric(
    "flexmarl_orchestrator_engine_bindings_total", "Engines that came to serve it.", ["policy"]
)
PACE_MEMORY = 0.9
"""Share of the older measurements in the pace of engines, at each new one."""

log = structlog.get_logger()


class Pool:
    """One pool's engines, as they are decided about."""

    def __init__(self, name: str, policies: list[str]) -> None:
        self.name, self.policies = name, policies
        self.books = Books()
        self.pace: float | None = None
        """Seconds in which one of its engines plays one turn."""
        self.wants: list[tuple[float, int]] = []
        self.wanted = 0

    def measure(self, seconds: float, engines: int, done: int) -> None:
        """`done` turns were played in so many seconds."""
        if done and engines:
            now = seconds * engines / done
            old = now if self.pace is None else self.pace
            self.pace = PACE_MEMORY * old + (1 - PACE_MEMORY) * now


class Binder:
    """Of one incarnation; `run` while anything is played."""

    def __init__(
        self,
        job: MARLJob,
        incarnation: int,
        engines: Engines,
        workers: Mapping[str, grpc.aio.Channel],
        *,
        limits: Limits,
        desk: Desk,
        job_file: Path,
    ) -> None:
        """`workers`: who is there, by address. `job_file`: its `balancing` may change."""
        self._engines, self._workers = engines, workers
        self._limits, self._desk, self._job_file = limits, desk, job_file
        self._balancing, self._read = job.spec.balancing, 0
        self._pools = [Pool(name, own) for name, own in job.spec.engine_pools.items()]
        self._local = job.spec.local_policies
        self._order = [incarnation, 0]
        self._heard: dict[str, dict[str, list[str]]] = {}
        """By worker: what it was told last, and answered."""
        self._work: dict[str, routing_pb2.BindingsResponse] = {}
        """By worker: what it said last."""
        self._started = time.monotonic()
        self._asked = self._started

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._engines.news.clear()
            if self._pools:
                self._balancing = await asyncio.to_thread(self._read_balancing)
            serving = {policy: self._engines.serving(policy) for policy in self._local}
            if self._pools or any(self._heard.get(each) != serving for each in self._workers):
                await self._tell(serving)
                for pool in self._pools:
                    self._decide(pool, time.monotonic())
            self._desk.engines = self._engines.counts()
            try:
                async with asyncio.timeout(self._limits.tell_every):
                    await self._engines.news.wait()
            except TimeoutError:
                pass

    def _read_balancing(self) -> BalancingSpec:
        try:
            changed = self._job_file.stat().st_mtime_ns
            if changed == self._read:
                return self._balancing
            found = served_job(self._job_file)[0].spec.balancing
        except (OSError, JobFileError) as error:  # it is being replaced
            log.debug("job file not read", error=str(error))
            return self._balancing
        if self._read and found != self._balancing:
            log.info("balancing", **found.model_dump())
        self._read = changed
        return found

    async def _tell(self, serving: dict[str, list[str]]) -> None:
        """Every worker who serves whom; each answers with what wants to be sampled."""
        self._order[1] += 1
        request = routing_pb2.BindingsRequest(
            incarnation=self._order[0],
            serial=self._order[1],
            policies={
                policy: routing_pb2.Serving(engines=engines) for policy, engines in serving.items()
            },
        )
        done = self._done()
        workers = dict(self._workers)
        # Called before anybody else runs, who might close a channel.
        calls = [
            routing_pb2_grpc.RoutingStub(channel).Bindings(request, timeout=self._limits.tell)
            for channel in workers.values()
        ]
        answers = await asyncio.gather(*map(_answer, calls))
        known = {worker: self._work[worker] for worker in workers if worker in self._work}
        said = {
            worker: answer
            for worker, answer in zip(workers, answers, strict=True)
            if answer is not None
        }
        self._heard = dict.fromkeys(said, serving)
        self._work = known | said  # of one that does not answer, what it said last
        now, more = time.monotonic(), self._done()
        for pool in self._pools:
            count = sum(max(0, more[policy] - done[policy]) for policy in pool.policies)
            pool.measure(now - self._asked, len(self._engines.bound(pool.name)), count)
        self._asked = now

    def _done(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for said in self._work.values():
            found.update({policy: work.done for policy, work in said.policies.items()})
        return found

    def _backlog(self, pool: Pool) -> dict[str, int]:
        return {
            policy: sum(
                said.policies[policy].turns
                for said in self._work.values()
                if policy in said.policies
            )
            for policy in pool.policies
        }

    def _decide(self, pool: Pool, now: float) -> None:
        balancing = self._balancing
        rules = Rules(
            delta=balancing.delta,
            hysteresis=balancing.hysteresis_seconds,
            cost=self._engines.switch_seconds(pool.name),
            pace=pool.pace,
        )
        backlog, bound = self._backlog(pool), self._engines.bound(pool.name)
        moves, pool.books = bind_engines(
            pool.policies, bound, backlog, pool.books, now=now, rules=rules
        )
        for address, policy in moves.items():
            before = bound[address]
            log.info("engine serves another policy", engine=address, policy=policy, before=before)
            BINDINGS.labels(policy).inc()
            self._engines.bind(pool.name, address, policy)
        self._scale(
            pool, wanted_scale(backlog.values(), balancing.turns_per_engine), now, len(bound)
        )

    def _scale(self, pool: Pool, wants: int, now: float, there: int) -> None:
        """Say how many engines are wanted; at first no fewer than there are."""
        window = self._balancing.shrink_seconds
        pool.wants.append((now, wants if now - self._started > window else max(wants, there)))
        pool.wanted, pool.wants = settled_scale(pool.wants, now, window)
        self._desk.wanted = {one.name: one.wanted for one in self._pools if one.wanted}


async def _answer(
    call: Awaitable[routing_pb2.BindingsResponse],
) -> routing_pb2.BindingsResponse | None:
    """None: the worker does not answer."""
    try:
        return await call
    except grpc.aio.AioRpcError:
        return None
