"""Plays whole groups: all episodes side by side, then one transaction to the experience store.

A group whose place in a step is decided later waits here until it is (`held`).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace

from prometheus_client import Counter, Gauge
from structlog.contextvars import bound_contextvars

from flexmarl.contracts.job import MARLJobSpec
from flexmarl.data.difficulty import evidence
from flexmarl.data.notes import Note
from flexmarl.experience.samples import GroupId, PolicySamples
from flexmarl.rollout.bindings import Bindings
from flexmarl.rollout.engine_pool import EnginePool
from flexmarl.rollout.filters import Filter, PlayedGroup
from flexmarl.rollout.groups import (
    GroupOrder,
    GroupResult,
    Played,
    policy_samples,
)
from flexmarl.rollout.held import HeldGroups
from flexmarl.rollout.pace import Pace
from flexmarl.rollout.player import EpisodePlayer
from flexmarl.rollout.policies import TurnSource
from flexmarl.rollout.prompts import PromptEncoder
from flexmarl.rollout.staleness import STALENESS
from flexmarl.rollout.storing import Store, Storing
from flexmarl.rollout.teams import Teams
from flexmarl.rollout.told import Told, count
from flexmarl.runtime.errors import (
    FlexMARLError,
    FullError,
    InvalidJobError,
    InvalidRequestError,
    JobFailedError,
    StalePolicyError,
)
from flexmarl.runtime.seeds import derive_seed

IN_FLIGHT = Gauge("flexmarl_rollout_episodes_in_flight", "Episodes being played.")
DROPPED = Counter("flexmarl_rollout_dropped_groups_total", "Groups that the filter did not keep.")
HELD = Gauge("flexmarl_rollout_held_groups", "Groups that wait for their place in a step.")

MOST_EPISODES = 4096
"""At a time; further ones wait for their turn."""
MOST_GROUPS = 4096
"""Being played or waiting; further ones are refused."""
PLACE_SECONDS = 45.0
"""How long a held group waits for the store, or room in it, before it has to be asked for again;
the orchestrator allows more than that."""


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
        keep: Filter | None = None,
        most_episodes: int = MOST_EPISODES,
    ) -> None:
        """`encoders` by policy for those on engines of ours, `externals` for the others."""
        self._spec, self._player = spec, player
        self._filter = keep
        self.bindings = Bindings(itertools.chain(*spec.engine_pools.values()))
        self._held = HeldGroups()
        self._storing = Storing(store, self._held.check)
        self._told = Told()
        self._teams = Teams(spec, encoders, externals, pool, self.bindings)
        self._slots = asyncio.Semaphore(most_episodes)
        self._pace = Pace()
        self._groups = 0

    async def run_group(self, order: GroupOrder) -> GroupResult:
        """Play and, for training, store or hold it. Cancelling it aborts its turns.

        Rewards that wait for each other, the store, and room in it, are waited for as long as it
        takes: nothing that was sampled is thrown away.

        StalePolicyError: an engine holds a newer version than the routes say. FencedError: the
        incarnation is over. UnavailableError: try again. JobFailedError: the job cannot work.
        """
        if self._groups >= MOST_GROUPS:
            raise FullError(f"{self._groups} groups are played or wait here already")
        self._held.check(order.id)
        self._groups += 1
        if order.hold:
            self._held.forget_before(order.since - self._spec.pipeline.max_staleness)
        try:
            with (
                self._held.room(order.id) if order.hold else nullcontext(),
                bound_contextvars(group=str(order.id), task=order.task.id),
            ):
                return await self._run_group(order)
        finally:
            self._groups -= 1
            HELD.set(len(self._held))

    async def place_group(self, played: GroupId, place: GroupId) -> bool:
        """Store a held group at `place`; whether it was there already.

        NotFoundError: it is not held here. InvalidRequestError, StalePolicyError: it cannot be
        stored there. FencedError: the incarnation is over. UnavailableError: try again.
        """
        held = self._held.claim(played, place)
        if held is None:
            return True
        samples = held.at(played, place)
        try:
            async with asyncio.timeout(PLACE_SECONDS):
                stored = await self._storing.append(place, held.task_id, samples, held.note)
        except TimeoutError:
            raise FullError(
                f"the store took no group for {PLACE_SECONDS:g} s; {played} waits here"
            ) from None
        except (InvalidRequestError, StalePolicyError):  # nothing was stored
            self._held.release(played)
            raise
        self._held.placed(played, place)
        HELD.set(len(self._held))
        if stored:
            STALENESS.observe(samples, place.step)
        return not stored

    async def _run_group(self, order: GroupOrder) -> GroupResult:
        started = time.perf_counter()
        episodes = await self._play(order)
        played = time.perf_counter()
        samples: tuple[PolicySamples, ...] = ()
        dropped = duplicate = False
        if order.train:
            await self._pace.keep()
            samples = self._samples(order, episodes)
            self._told.of_nothing(order, episodes, samples)
            dropped = not await self._kept(order, episodes, samples)
            played = time.perf_counter()  # from here on it is the store's
            duplicate = not dropped and not await self._stored(
                order, samples, self._note(episodes), played
            )
        count(episodes)
        DROPPED.inc(dropped)
        return GroupResult(
            order.id,
            duplicate,
            episodes,
            sum(each.forks for each in episodes),
            time.perf_counter() - started,
            tuple(each.transcript() for each in episodes) if order.transcripts else (),
            dropped,
            min((each.version for each in samples if each.sequences), default=None),
            sum(turn.resumed for each in episodes for turn in each.turns),
            time.perf_counter() - played,
        )

    async def _kept(
        self, order: GroupOrder, episodes: tuple[Played, ...], samples: tuple[PolicySamples, ...]
    ) -> bool:
        if self._filter is None or order.final:
            return True
        return await self._filter.keep(PlayedGroup(order.task, episodes, samples))

    def _note(self, episodes: Iterable[Played]) -> Note:
        """What tasks are chosen by, where they are."""
        if self._spec.pipeline.difficulty is None:
            return Note()
        rewards = (each for played in episodes for each in played.rewards.items())
        scored = ((agent, reward) for agent, reward in rewards if reward is not None)
        return Note(evidence(scored, self._spec.solved_reward))

    async def _stored(
        self, order: GroupOrder, samples: tuple[PolicySamples, ...], note: Note, played: float
    ) -> bool:
        """False: it was there before."""
        if order.hold:
            note = replace(note, drawn=(order.id.step, order.id.index))
            self._held.keep(order.id, order.task.id, samples, note.encoded(), since=order.since)
            return True
        stored = await self._storing.append(
            order.id, order.task.id, samples, note.encoded(), played=played
        )
        if stored:
            STALENESS.observe(samples, order.id.step)
        return stored

    async def _play(self, order: GroupOrder) -> tuple[Played, ...]:
        """Side by side; the first that makes the group void ends the others."""
        team = self._teams.of(order.routes)

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

    def _samples(
        self, order: GroupOrder, episodes: tuple[Played, ...]
    ) -> tuple[PolicySamples, ...]:
        """One per trained policy; an empty one where it took no turn."""
        return tuple(
            policy_samples(
                policy,
                [agent.name for agent in self._spec.agents_of(policy)],
                order.id,
                episodes,
                self._spec.pipeline.overlong,
            )
            for policy in self._spec.trained_policies
        )
