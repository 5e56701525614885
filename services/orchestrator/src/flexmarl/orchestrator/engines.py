"""Keeps every engine at the weights that its policy stands at.

One watcher per engine compares what the engine holds with what is wanted, at once when that
changes and every `Limits.watch` seconds, and loads on any difference. So a fresh version, an engine
that restarted and one that was away are one case.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import grpc.aio
import structlog
from prometheus_client import Counter, Histogram

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import engine_pb2, engine_pb2_grpc, rollout_pb2
from flexmarl.contracts.v1.weights_pb2 import WeightsRef
from flexmarl.orchestrator.calls import StateLostError, fault_of, says
from flexmarl.orchestrator.issue import Fault, pause
from flexmarl.orchestrator.limits import Limits
from flexmarl.runtime.errors import JobFailedError

LOADS = Counter("flexmarl_orchestrator_weight_loads_total", "Weight loads by engines.", ["policy"])
LOAD_SECONDS = Histogram("flexmarl_orchestrator_weight_load_seconds", "Time of one weight load.")

UNCHANGING = 1 << 62
"""The version of a policy that is always new enough."""

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Engine:
    """One engine, as it was last seen."""

    policy: str
    address: str
    stub: engine_pb2_grpc.EngineAsyncStub
    held: int | None = None
    """The version that it holds as wanted; None: another one, or it does not answer."""
    away_since: float | None = None
    """Since when it does not answer."""
    trouble: str = ""
    changed: bool = True
    """What is held or whether it answers, since that was told."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class Engines:
    """The engines of all local policies. `watch` must run while anything waits for them."""

    def __init__(
        self,
        job: MARLJob,
        stubs: dict[str, dict[str, engine_pb2_grpc.EngineAsyncStub]],
        limits: Limits,
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called whenever an engine has come to hold something else."""
        self._limits = limits
        self._check = job.spec.weight_sync.check
        self._external = [policy.name for policy in job.spec.policies if policy.external]
        self._untrained = set(job.spec.local_policies) - set(job.spec.trained_policies)
        self._stubs = stubs
        self._engines: dict[str, list[Engine]] = {policy: [] for policy in stubs}
        self._watching: dict[Engine, asyncio.Task[None]] = {}
        self._joined = asyncio.Event()
        self._wanted: dict[str, WeightsRef] = {}
        self._changed = asyncio.Condition()
        self._newest: dict[str, int | None] = {}
        """What `version` found since something changed."""

    def want(self, policy: str, weights: WeightsRef) -> None:
        """From now on the policy's engines are to hold `weights`."""
        if self._wanted.get(policy) == weights:
            return
        self._wanted[policy] = weights
        for engine in self._engines.get(policy, []):
            self._hold(engine, None)
            engine.wake.set()

    async def watch(self) -> None:
        """Keep all engines at what is wanted, until cancelled. JobFailedError: they cannot be.

        StateLostError: what was published is gone.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                self._joined.clear()
                self._follow(group)
                await self._joined.wait()

    def look(self) -> None:
        """Somebody has come or gone."""
        self._joined.set()

    def _follow(self, group: asyncio.TaskGroup) -> None:
        """Watch those that are there, and nobody else."""
        for policy, by_address in self._stubs.items():
            engines = self._engines[policy]
            for engine in [one for one in engines if by_address.get(one.address) is not one.stub]:
                engines.remove(engine)
                self._watching.pop(engine).cancel()
                self._newest.clear()
            known = {engine.address for engine in engines}
            for address, stub in by_address.items():
                if address not in known:
                    engine = Engine(policy, address, stub)
                    engines.append(engine)
                    self._watching[engine] = group.create_task(self._watch(engine))

    async def ready(self) -> None:
        """Return once every engine holds what is wanted of it.

        Engines that do not answer are left out, as long as each policy has one that does.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: all(map(self._settled, self._engines)))

    def version(self, policy: str) -> int | None:
        """The newest version that an engine of the policy holds; None: none holds what is wanted.

        Policies that never change are always there: whoever plays waits for them.
        """
        if policy in self._untrained or policy in self._external:
            return UNCHANGING
        if policy not in self._newest:
            held = [engine.held for engine in self._engines[policy] if engine.held is not None]
            self._newest[policy] = max(held, default=None)
        return self._newest[policy]

    def routes(
        self, newest: int, oldest: int | None = None, policies: Collection[str] | None = None
    ) -> list[rollout_pb2.Route]:
        """A route for each of `policies` (None: all), to engines at versions `oldest` to `newest`.

        `oldest` None: at `newest` alone. Untrained and external policies stand at 0 for ever.
        """
        routes = []
        for policy in self._external:
            if policies is None or policy in policies:
                routes.append(rollout_pb2.Route(policy=policy))
        for policy, engines in self._engines.items():
            if policies is not None and policy not in policies:
                continue
            frozen = policy in self._untrained
            last, first = (0, None) if frozen else (newest, oldest)
            least = last if first is None else first
            ready = [
                engine.address
                for engine in engines
                if engine.held is not None and least <= engine.held <= last
            ]
            # While none is ready the worker is told all of them and waits for one.
            everyone = [engine.address for engine in engines]
            routes.append(
                rollout_pb2.Route(
                    policy=policy, version=last, min_version=first, engines=ready or everyone
                )
            )
        return routes

    def _settled(self, policy: str) -> bool:
        held = [engine.held is not None for engine in self._engines[policy]]
        away = [engine.away_since is not None for engine in self._engines[policy]]
        return any(held) and all(a or b for a, b in zip(held, away, strict=True))

    async def _watch(self, engine: Engine) -> None:
        attempt = 0
        while True:
            try:
                await self._look(engine)
                attempt = 0
                await self._note(engine, None)
                await self._until_woken(engine, self._limits.watch)
            except grpc.aio.AioRpcError as error:
                attempt += 1
                self._hold(engine, None)
                engine.trouble = says(error)
                if error.code() is grpc.StatusCode.NOT_FOUND:  # published, and there no more
                    raise StateLostError(f"{_name(engine)}: {says(error)}") from error
                if fault_of(error) is Fault.FATAL:
                    raise JobFailedError(f"{_name(engine)}: {says(error)}") from error
                await self._note(engine, error)
                await self._until_woken(engine, pause(attempt))

    async def _until_woken(self, engine: Engine, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await engine.wake.wait()
        except TimeoutError:
            pass

    async def _look(self, engine: Engine) -> None:
        """Compare, and load on a difference."""
        engine.wake.clear()
        wanted = self._wanted.get(engine.policy)
        if engine.policy in self._untrained:
            stats = await engine.stub.Stats(
                engine_pb2.StatsRequest(), timeout=self._limits.short_call
            )
            mine = stats.loaded and stats.policy == engine.policy
            self._hold(engine, 0 if mine else None)
            return
        if wanted is None:
            return
        if engine.held is not None:
            stats = await engine.stub.Stats(
                engine_pb2.StatsRequest(), timeout=self._limits.short_call
            )
            if self._is(stats, engine.policy, wanted):
                return
            log.warning(
                "engine lost its weights",
                engine=engine.address,
                wanted=(engine.policy, wanted.version),
                holds=(stats.policy, stats.version) if stats.loaded else None,
            )
        await self._load(engine, wanted)

    def _is(self, stats: engine_pb2.StatsResponse, policy: str, wanted: WeightsRef) -> bool:
        same = stats.loaded and stats.policy == policy and stats.version == wanted.version
        checked = self._check and stats.checksum and wanted.checksum
        return same and (not checked or stats.checksum == wanted.checksum)

    async def _load(self, engine: Engine, wanted: WeightsRef) -> None:
        self._hold(engine, None)
        request = engine_pb2.LoadWeightsRequest(policy=engine.policy, weights=wanted)
        for repeated in (False, True):
            started = time.monotonic()
            response = await engine.stub.LoadWeights(request, timeout=self._limits.load)
            LOADS.labels(engine.policy).inc()
            LOAD_SECONDS.observe(time.monotonic() - started)
            if not self._check or response.checksum == wanted.checksum:
                break
            if repeated:
                raise JobFailedError(
                    f"{_name(engine)} holds other weights than the trainer published: version "
                    f"{wanted.version} has checksum {wanted.checksum}, the engine computes "
                    f"{response.checksum} (weightSync.check)"
                )
            log.warning("checksum differs, loading again", engine=engine.address)
        if self._wanted.get(engine.policy) == wanted:
            self._hold(engine, wanted.version)
        else:
            engine.wake.set()
        log.debug("weights loaded", engine=engine.address, version=wanted.version)

    async def _note(self, engine: Engine, error: grpc.aio.AioRpcError | None) -> None:
        """Keep the time since when an engine is away or behind, and tell of what changed."""
        now = time.monotonic()
        if error is None:
            engine.changed |= engine.away_since is not None
            engine.away_since = None
        elif engine.away_since is None:
            engine.away_since, engine.changed = now, True
            log.warning("engine fails", engine=engine.address, error=engine.trouble)
        elif now - engine.away_since > self._limits.unreachable:
            raise JobFailedError(
                f"{_name(engine)} has been failing for {self._limits.unreachable:g} s: "
                f"{engine.trouble}"
            )
        if engine.changed:
            engine.changed = False
            async with self._changed:
                self._changed.notify_all()
            self.on_change()

    def _hold(self, engine: Engine, version: int | None) -> None:
        if version != engine.held:
            engine.held, engine.changed = version, True
            self._newest.clear()


def _name(engine: Engine) -> str:
    return f"engine of {engine.policy} at {engine.address}"
