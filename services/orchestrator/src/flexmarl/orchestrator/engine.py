"""One engine as the orchestrator sees it, and what keeps it at the weights that are wanted of it.

Its watcher compares what the engine holds with what is wanted, at once when that changes and every
`Limits.watch` seconds, and loads on any difference. So a fresh version, an engine that restarted,
one that was away and one that now serves another policy are one case.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import grpc.aio
import structlog
from prometheus_client import Counter, Histogram

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import engine_pb2, engine_pb2_grpc
from flexmarl.contracts.v1.weights_pb2 import WeightsRef
from flexmarl.orchestrator.calls import StateLostError, StoreLostError, fault_of, says
from flexmarl.orchestrator.issue import Fault, pause
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.sharing import UNBOUND
from flexmarl.runtime.errors import JobFailedError

LOADS = Counter("flexmarl_orchestrator_weight_loads_total", "Weight loads by engines.", ["policy"])
LOAD_SECONDS = Histogram("flexmarl_orchestrator_weight_load_seconds", "Time of one weight load.")

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Engine:
    """One engine, as it was last seen."""

    policy: str
    """The one that it is to serve."""
    address: str
    stub: engine_pb2_grpc.EngineAsyncStub
    pool: str = ""
    """Whose policies it serves in turns; empty: it has one policy for ever."""
    held: int | None = None
    """The version that it holds as wanted; None: another one, or it does not answer."""
    answers: bool = False
    away_since: float | None = None
    """Since when it does not answer."""
    drains_until: float | None = None
    """By the monotonic clock: turns of the policy that it served before play to their end."""
    trouble: str = ""
    changed: bool = True
    """What is held or whether it answers, since that was told."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __str__(self) -> str:
        return f"engine of {self.pool or self.policy} at {self.address}"

    def hold(self, version: int | None) -> None:
        if version != self.held:
            self.held, self.changed = version, True

    def bind(self, policy: str, drain_seconds: float = 0.0) -> None:
        """From now on it is to serve this policy."""
        self.policy, self.drains_until = policy, time.monotonic() + drain_seconds
        self.hold(None)
        self.wake.set()


class Watcher:
    """Keeps engines at what is wanted."""

    def __init__(
        self,
        job: MARLJob,
        wanted: Mapping[str, WeightsRef],
        limits: Limits,
        told: Callable[[], None],
        incarnation: int,
    ) -> None:
        """`wanted`: the weights of each trained policy; `told` is called when an engine has come to
        hold something else, or answers or does not."""
        self._check = job.spec.weight_sync.check
        self._trained = set(job.spec.trained_policies)
        self._wanted, self._limits, self._told = wanted, limits, told
        self._incarnation = incarnation
        self.switch_seconds: dict[str, float] = {}
        """By pool: how long the last change of a policy took, draining aside."""

    async def watch(self, engine: Engine) -> None:
        """Until cancelled. JobFailedError, StateLostError, StoreLostError: it cannot be brought
        there."""
        attempt = 0
        while True:
            try:
                draining = await self._look(engine)
                attempt = 0
                self._note(engine, None)
                await _until_woken(
                    engine, self._limits.drain_look if draining else self._limits.watch
                )
            except grpc.aio.AioRpcError as error:
                attempt += 1
                engine.hold(None)
                engine.trouble = says(error)
                if error.code() is grpc.StatusCode.NOT_FOUND:  # published, and there no more
                    raise StateLostError(f"{engine}: {says(error)}") from error
                if fault_of(error) is Fault.FATAL:
                    raise JobFailedError(f"{engine}: {says(error)}") from error
                self._note(engine, error)
                await _until_woken(engine, pause(attempt))

    async def _look(self, engine: Engine) -> bool:
        """Compare, and load on a difference; whether it still plays turns of another policy."""
        engine.wake.clear()
        policy, wanted = engine.policy, self._wanted.get(engine.policy)
        if policy == UNBOUND:
            stats = await self._stats(engine)
            if stats.loaded and engine.policy == UNBOUND:  # from before we or the connection came
                engine.bind(stats.policy)
        elif policy not in self._trained and not engine.pool:
            stats = await self._stats(engine)
            engine.hold(0 if stats.loaded and stats.policy == policy else None)
        elif wanted is not None or policy not in self._trained:
            if engine.held is None and engine.pool and await self._drains(engine):
                return True
            if engine.held is None or not await self._still(engine, policy, wanted):
                await self._load(engine, policy, wanted)
        return False

    async def _stats(self, engine: Engine) -> engine_pb2.StatsResponse:
        stats: engine_pb2.StatsResponse = await engine.stub.Stats(
            engine_pb2.StatsRequest(), timeout=self._limits.short_call
        )
        return stats

    async def _drains(self, engine: Engine) -> bool:
        """Whether turns of the policy before are still being played, and may be."""
        if engine.drains_until is None or time.monotonic() >= engine.drains_until:
            return False
        stats = await self._stats(engine)
        busy = stats.loaded and stats.running + stats.waiting > 0
        return busy and stats.policy != engine.policy

    async def _still(self, engine: Engine, policy: str, wanted: WeightsRef | None) -> bool:
        """Whether it holds what it held."""
        stats = await self._stats(engine)
        version = wanted.version if wanted else 0
        if stats.loaded and (stats.policy, stats.version) == (policy, version):
            checked = self._check and wanted and stats.checksum and wanted.checksum
            if not checked or stats.checksum == checked:
                return True
        log.warning(
            "engine lost its weights",
            engine=engine.address,
            wanted=(policy, version),
            holds=(stats.policy, stats.version) if stats.loaded else None,
        )
        return False

    async def _load(self, engine: Engine, policy: str, wanted: WeightsRef | None) -> None:
        """`wanted` None: what the source of an untrained policy has."""
        engine.hold(None)
        request = engine_pb2.LoadWeightsRequest(
            policy=policy, weights=wanted, incarnation=self._incarnation
        )
        for repeated in (False, True):
            started = time.monotonic()
            try:
                response = await engine.stub.LoadWeights(request, timeout=self._limits.load)
            except grpc.aio.AioRpcError as error:
                if fault_of(error) is Fault.FENCED:
                    known = (await self._stats(engine)).incarnation
                    raise StoreLostError(f"{engine}: {says(error)}", above=known) from error
                raise
            seconds = time.monotonic() - started
            LOADS.labels(policy).inc()
            LOAD_SECONDS.observe(seconds)
            if wanted is None or not self._check or response.checksum == wanted.checksum:
                break
            if repeated:
                raise JobFailedError(
                    f"{engine} holds other weights than the trainer published: version "
                    f"{wanted.version} has checksum {wanted.checksum}, the engine computes "
                    f"{response.checksum} (weightSync.check)"
                )
            log.warning("checksum differs, loading again", engine=engine.address)
        if engine.pool and engine.drains_until is not None:
            self.switch_seconds[engine.pool] = seconds
        if engine.policy == policy:
            engine.drains_until = None
        if engine.policy == policy and self._wanted.get(policy) == wanted:
            engine.hold(wanted.version if wanted else 0)
        else:
            engine.wake.set()
        log.debug("weights loaded", engine=engine.address, policy=policy, version=response.version)

    def _note(self, engine: Engine, error: grpc.aio.AioRpcError | None) -> None:
        """Keep the time since when an engine is away or behind, and tell of what changed."""
        now = time.monotonic()
        engine.changed |= engine.answers is not (error is None)
        engine.answers = error is None
        if error is None:
            engine.away_since = None
        elif engine.away_since is None:
            engine.away_since = now
            if engine.pool:  # whoever needs one gets it when it is back
                engine.policy, engine.drains_until = UNBOUND, None
            log.warning("engine fails", engine=engine.address, error=engine.trouble)
        elif now - engine.away_since > self._limits.unreachable:
            raise JobFailedError(
                f"{engine} has been failing for {self._limits.unreachable:g} s: {engine.trouble}"
            )
        if engine.changed:
            engine.changed = False
            self._told()


async def _until_woken(engine: Engine, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await engine.wake.wait()
    except TimeoutError:
        pass
