"""Plays whole groups: all episodes side by side, then one transaction to the experience store."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Protocol

from prometheus_client import Counter, Gauge

from flexmarl.contracts.job import MARLJobSpec
from flexmarl.experience.samples import GroupId, PolicySamples
from flexmarl.rollout.conversation import PromptEncoder
from flexmarl.rollout.episode import Player, sampling_of
from flexmarl.rollout.groups import GroupOrder, GroupResult, Played, RouteTo, policy_samples
from flexmarl.rollout.player import EpisodePlayer
from flexmarl.rollout.policies import EnginePolicy, EnginePool, TurnSource
from flexmarl.runtime.errors import (
    FlexMARLError,
    InvalidJobError,
    InvalidRequestError,
    JobFailedError,
    UnavailableError,
)
from flexmarl.runtime.seeds import derive_seed

EPISODES = Counter("flexmarl_rollout_episodes_total", "Episodes played.", ["outcome"])
TURNS = Counter("flexmarl_rollout_turns_total", "Turns taken in finished episodes.")
TOKENS = Counter("flexmarl_rollout_tokens_total", "Tokens of finished episodes.", ["kind"])
FORKS = Counter("flexmarl_rollout_forks_total", "Histories that continue a turn in changed words.")
IN_FLIGHT = Gauge("flexmarl_rollout_episodes_in_flight", "Episodes being played.")

MOST_EPISODES = 1024
"""At a time; further ones wait for their turn."""
MOST_GROUPS = 4096
"""Being played or waiting; further ones are refused."""
ROUTES_KEPT = 8


class Store(Protocol):
    """What is needed of `flexmarl.experience.client.ExperienceClient`."""

    async def append_group(
        self, group: GroupId, task_id: str, samples: Iterable[PolicySamples]
    ) -> bool: ...


class Worker:
    """Plays the groups of one job."""

    def __init__(
        self,
        spec: MARLJobSpec,
        player: EpisodePlayer,
        *,
        encoders: Mapping[str, PromptEncoder],
        externals: Mapping[str, TurnSource],
        pool: EnginePool,
        store: Store,
        most_episodes: int = MOST_EPISODES,
    ) -> None:
        """`encoders` by policy for those on engines of ours, `externals` for the others."""
        self._spec, self._player = spec, player
        self._encoders, self._externals = encoders, externals
        self._pool, self._store = pool, store
        self._slots = asyncio.Semaphore(most_episodes)
        self._groups = 0
        self._teams: OrderedDict[tuple[RouteTo, ...], list[Player]] = OrderedDict()

    async def run_group(self, order: GroupOrder) -> GroupResult:
        """Play and, for training, store it. Cancelling it aborts its turns.

        StalePolicyError: an engine holds a newer version than the routes say. FencedError: the
        incarnation is over. UnavailableError: try again. JobFailedError: the job cannot work.
        """
        if self._groups >= MOST_GROUPS:
            raise UnavailableError(f"{self._groups} groups are waiting here already")
        self._groups += 1
        try:
            return await self._run_group(order)
        finally:
            self._groups -= 1

    async def _run_group(self, order: GroupOrder) -> GroupResult:
        started = time.perf_counter()
        episodes = await self._play(order)
        duplicate = False
        if order.train:
            samples = self._samples(order, episodes)
            duplicate = not await self._store.append_group(order.id, order.task.id, samples)
        _count(episodes)
        return GroupResult(
            order.id,
            duplicate,
            episodes,
            sum(played.forks for played in episodes),
            time.perf_counter() - started,
            tuple(played.transcript() for played in episodes) if order.transcripts else (),
        )

    async def _play(self, order: GroupOrder) -> tuple[Played, ...]:
        """Side by side; the first that makes the group void ends the others."""
        team = self._team(order.routes)

        async def one(number: int) -> Played:
            async with self._slots:
                with IN_FLIGHT.track_inprogress():
                    seed = derive_seed(order.seed, number)
                    return await self._player.play(number, order.task, seed, team, order.train)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(number)) for number in range(order.episodes)]
        except ExceptionGroup as errors:
            ours, bugs = errors.split(FlexMARLError)
            if ours is None or bugs is not None:
                raise
            first = ours.exceptions[0]
            if isinstance(first, InvalidJobError):  # the request was well-formed; the job isn't
                raise JobFailedError(str(first)) from errors
            raise first from errors
        return tuple(task.result() for task in tasks)

    def _samples(self, order: GroupOrder, episodes: tuple[Played, ...]) -> list[PolicySamples]:
        """One per trained policy; an empty one where it took no turn."""
        routes = {route.policy: route for route in order.routes}
        return [
            policy_samples(
                routes[policy],
                [agent.name for agent in self._spec.agents_of(policy)],
                order.id,
                episodes,
            )
            for policy in self._spec.trained_policies
        ]

    def _team(self, routes: tuple[RouteTo, ...]) -> list[Player]:
        found = self._teams.get(routes)
        if found is None:
            sources = {**{route.policy: self._source(route) for route in routes}, **self._externals}
            lacking = {policy.name for policy in self._spec.policies} - sources.keys()
            if lacking:
                raise InvalidRequestError(f"no route for policy {', '.join(sorted(lacking))}")
            found = self._teams[routes] = [
                Player(
                    agent,
                    sources[agent.policy],
                    self._encoders.get(agent.policy),
                    self._spec.policy(agent.policy).trained,
                    sampling_of(agent),
                )
                for agent in self._spec.agents
            ]
            if len(self._teams) > ROUTES_KEPT:
                self._teams.popitem(last=False)
        return found

    def _source(self, route: RouteTo) -> TurnSource:
        if route.policy in self._externals:
            return self._externals[route.policy]  # named for completeness; there is no choice
        if route.policy not in self._encoders:
            raise InvalidRequestError(f"a route for {route.policy!r}, which is no policy")
        tokens = self._encoders[route.policy].tokens
        return EnginePolicy(route.policy, route.version, route.engines, tokens, self._pool)


def _count(episodes: tuple[Played, ...]) -> None:
    turns = prompt = sampled = forks = 0
    for played in episodes:
        EPISODES.labels(played.outcome).inc()
        forks += played.forks
        turns += len(played.turns)
        for turn in played.turns:
            prompt += turn.prompt_tokens
            sampled += turn.sampled_tokens
    TURNS.inc(turns)
    TOKENS.labels("prompt").inc(prompt)
    TOKENS.labels("sampled").inc(sampled)
    FORKS.inc(forks)
