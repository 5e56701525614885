"""Who plays a group: the job's agents, each with the source of its turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from flexmarl.contracts.job import MARLJobSpec
from flexmarl.rollout.bindings import Bindings
from flexmarl.rollout.engine_pool import EnginePool
from flexmarl.rollout.episode import Player, sampling_of
from flexmarl.rollout.groups import RouteTo
from flexmarl.rollout.policies import EnginePolicy, TurnSource
from flexmarl.rollout.prompts import PromptEncoder
from flexmarl.runtime.errors import InvalidRequestError

ROUTES_KEPT = 8


class Teams:
    """By routes: groups of a step mostly have the same."""

    def __init__(
        self,
        spec: MARLJobSpec,
        encoders: Mapping[str, PromptEncoder],
        externals: Mapping[str, TurnSource],
        pool: EnginePool,
        bindings: Bindings,
    ) -> None:
        """`encoders` by policy for those on engines of ours, `externals` for the others."""
        self._spec, self._encoders, self._externals = spec, encoders, externals
        self._pool, self._bindings = pool, bindings
        self._known: OrderedDict[tuple[RouteTo, ...], list[Player]] = OrderedDict()

    def of(self, routes: tuple[RouteTo, ...]) -> list[Player]:
        """InvalidRequestError: a policy has no route, or a route is for none."""
        found = self._known.get(routes)
        if found is None:
            sources = {**{route.policy: self._source(route) for route in routes}, **self._externals}
            lacking = {policy.name for policy in self._spec.policies} - sources.keys()
            if lacking and self._spec.workflow.participants is None:
                raise InvalidRequestError(f"no route for policy {', '.join(sorted(lacking))}")
            found = self._known[routes] = [
                Player(
                    agent,
                    sources.get(agent.policy),
                    self._encoders.get(agent.policy),
                    self._spec.policy(agent.policy).trained,
                    sampling_of(agent),
                )
                for agent in self._spec.agents
            ]
            if len(self._known) > ROUTES_KEPT:
                self._known.popitem(last=False)
        return found

    def _source(self, route: RouteTo) -> TurnSource:
        if route.policy in self._externals:
            return self._externals[route.policy]  # named for completeness; there is no choice
        if route.policy not in self._encoders:
            raise InvalidRequestError(f"a route for {route.policy!r}, which is no policy")
        encoder = self._encoders[route.policy]
        return EnginePolicy(
            route.policy,
            route.version,
            route.engines,
            encoder.tokens,
            self._pool,
            vocabulary=encoder.vocabulary,
            min_version=route.min_version,
            bindings=self._bindings,
        )
