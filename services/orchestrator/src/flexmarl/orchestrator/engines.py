"""The engines of all local policies: who serves what, at which version, and where groups go.

A policy has engines of its own, or shares those of a pool with others. `engine` keeps each at the
weights that are wanted of it, `binding` says which policy one of a pool serves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import engine_pb2_grpc, rollout_pb2
from flexmarl.contracts.v1.weights_pb2 import WeightsRef
from flexmarl.orchestrator.engine import Engine, Watcher
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.sharing import UNBOUND

UNCHANGING = 1 << 62
"""The version of a policy that is always new enough."""

Stubs: TypeAlias = "Mapping[str, Mapping[str, engine_pb2_grpc.EngineAsyncStub]]"
"""By policy or pool, then by address: those that are there."""


@dataclass(slots=True, eq=False)
class Crew:
    """The engines of one policy, or of one pool."""

    stubs: Mapping[str, engine_pb2_grpc.EngineAsyncStub]
    policy: str = UNBOUND
    pool: str = ""
    engines: list[Engine] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        """Each holds what is wanted of it, or is away; and there is one that is not."""
        wanted = [engine for engine in self.engines if engine.policy != UNBOUND]
        if not all(one.held is not None or one.away_since is not None for one in wanted):
            return False
        if self.pool:
            return any(engine.answers for engine in self.engines)
        return any(engine.held is not None for engine in self.engines)


class Engines:
    """`watch` must run while anything waits for them."""

    def __init__(
        self, job: MARLJob, stubs: Stubs, pools: Stubs, limits: Limits, incarnation: int
    ) -> None:
        """`stubs`: by policy of those with engines of their own; `pools`: by pool."""
        self.on_change: Callable[[], None] = lambda: None
        """Called whenever an engine has come to hold something else."""
        self.news = asyncio.Event()
        """Set likewise, for whoever binds engines."""
        spec = job.spec
        self._drain_seconds = spec.workflow.timeout
        self._external = [policy.name for policy in spec.policies if policy.external]
        self._untrained = set(spec.local_policies) - set(spec.trained_policies)
        self._crews = [Crew(own, policy=policy) for policy, own in stubs.items()]
        self._crews += [Crew(own, pool=pool) for pool, own in pools.items()]
        self._crew = {crew.policy: crew for crew in self._crews if crew.policy}
        self._pools = {crew.pool: crew for crew in self._crews if crew.pool}
        for pool, policies in spec.engine_pools.items():
            self._crew |= dict.fromkeys(policies, self._pools[pool])
        self._watching: dict[Engine, asyncio.Task[None]] = {}
        self._joined = asyncio.Event()
        self._wanted: dict[str, WeightsRef] = {}
        self._watcher = Watcher(job, self._wanted, limits, self._tell, incarnation)
        self._changed = asyncio.Event()
        self._newest: dict[str, int | None] = {}
        """What `version` found since something changed."""

    def want(self, policy: str, weights: WeightsRef) -> None:
        """From now on the policy's engines are to hold `weights`."""
        if self._wanted.get(policy) == weights:
            return
        self._wanted[policy] = weights
        for engine in self._serving(policy):
            engine.hold(None)
            engine.wake.set()
        self._tell()

    async def watch(self) -> None:
        """Keep all engines at what is wanted, until cancelled. JobFailedError: they cannot be.

        StateLostError: what was published is gone.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                self._joined.clear()
                self._follow(group)
                await self._joined.wait()

    def away(self) -> list[str]:
        """Engines that fail, where no other answers in their place."""
        return [
            f"{engine}: {engine.trouble}"
            for crew in self._crews
            for engine in crew.engines
            if engine.away_since is not None and not any(one.answers for one in crew.engines)
        ]

    def look(self) -> None:
        """Somebody has come or gone."""
        self._joined.set()

    def _follow(self, group: asyncio.TaskGroup) -> None:
        """Watch those that are there, and nobody else."""
        for crew in self._crews:
            for engine in [
                one for one in crew.engines if crew.stubs.get(one.address) is not one.stub
            ]:
                crew.engines.remove(engine)
                self._watching.pop(engine).cancel()
            known = {engine.address for engine in crew.engines}
            for address, stub in crew.stubs.items():
                if address not in known:
                    engine = Engine(crew.policy, address, stub, crew.pool)
                    crew.engines.append(engine)
                    self._watching[engine] = group.create_task(self._watcher.watch(engine))
        self._tell()

    def _tell(self) -> None:
        self._newest.clear()
        self._changed.set()
        self.news.set()
        self.on_change()

    async def ready(self) -> None:
        """Return once every engine holds what is wanted of it.

        Engines that do not answer are left out, as long as each policy and pool has one that does.
        """
        while not all(crew.settled for crew in self._crews):
            self._changed.clear()
            await self._changed.wait()

    def version(self, policy: str) -> int | None:
        """The newest version that an engine of the policy holds; None: none holds what is wanted.

        Of a policy that shares engines, the one that any of them can load. Policies that never
        change are always there: whoever plays waits for them.
        """
        if policy in self._untrained or policy in self._external:
            return UNCHANGING
        if policy not in self._newest:
            self._newest[policy] = self._found(policy)
        return self._newest[policy]

    def _found(self, policy: str) -> int | None:
        crew = self._crew[policy]
        if crew.pool:
            there = policy in self._wanted and any(engine.answers for engine in crew.engines)
            return self._wanted[policy].version if there else None
        return max((one.held for one in crew.engines if one.held is not None), default=None)

    def routes(
        self, newest: int, oldest: int | None = None, policies: Collection[str] | None = None
    ) -> list[rollout_pb2.Route]:
        """A route for each of `policies` (None: all), to engines at versions `oldest` to `newest`.

        `oldest` None: at `newest` alone. Untrained and external policies stand at 0 for ever. Where
        engines are shared the workers know who serves whom (`binding`).
        """
        routes = []
        for policy in self._external:
            if policies is None or policy in policies:
                routes.append(rollout_pb2.Route(policy=policy))
        for policy, crew in self._crew.items():
            if policies is not None and policy not in policies:
                continue
            frozen = policy in self._untrained
            last, first = (0, None) if frozen else (newest, oldest)
            engines = [] if crew.pool else _at(crew.engines, last if first is None else first, last)
            routes.append(
                rollout_pb2.Route(policy=policy, version=last, min_version=first, engines=engines)
            )
        return routes

    # Of pools.

    def bound(self, pool: str) -> dict[str, str]:
        """Address -> policy, of the engines that answer."""
        return {one.address: one.policy for one in self._pools[pool].engines if one.answers}

    def bind(self, pool: str, address: str, policy: str) -> None:
        """Have the engine play what it plays to its end, then serve this policy."""
        for engine in self._pools[pool].engines:
            if engine.address == address:
                engine.bind(policy, self._drain_seconds)
        self._tell()

    def serving(self, policy: str) -> list[str]:
        """The engines that can sample it now."""
        return [one.address for one in self._serving(policy) if one.held is not None]

    def counts(self) -> dict[str, int]:
        """Of engines that serve it, by policy, those included that load its weights just now."""
        found = Counter(dict.fromkeys(self._crew, 0))
        found.update(
            one.policy
            for crew in self._crews
            for one in crew.engines
            if one.answers and one.policy != UNBOUND
        )
        return dict(found)

    def switch_seconds(self, pool: str) -> float:
        """How long the last change of a policy took in the pool; 0: there was none."""
        return self._watcher.switch_seconds.get(pool, 0.0)

    def _serving(self, policy: str) -> Iterator[Engine]:
        if policy in self._crew:
            yield from (one for one in self._crew[policy].engines if one.policy == policy)


def _at(engines: Collection[Engine], oldest: int, newest: int) -> list[str]:
    """Those at such a version. While none is the worker is told all of them and waits for one."""
    ready = [
        one.address for one in engines if one.held is not None and oldest <= one.held <= newest
    ]
    return ready or [engine.address for engine in engines]
