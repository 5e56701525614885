"""A worker that does the least its protocol promises, and fails on demand.

What it samples is a function of the group's seed alone; which version it says comes from the engine
that it asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc.aio
import numpy as np
from tests.contract.orchestrator.fakes import FakeEngine

from flexmarl.contracts.v1 import rollout_pb2, rollout_pb2_grpc
from flexmarl.data.difficulty import evidence
from flexmarl.data.notes import Note
from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.samples import (
    PolicySamples,
    Sequence,
    TurnSpan,
    VersionSpan,
    group_id_from_wire,
)
from flexmarl.runtime.errors import NotFoundError, StalePolicyError

Place = tuple[int, int]


class FakeWorker(rollout_pb2_grpc.RolloutServicer):
    """Plays by asking the engines what they hold; `plays` sees every group first."""

    def __init__(
        self, experience: ExperienceClient, engines: dict[str, FakeEngine], agents: dict[str, str]
    ) -> None:
        """`engines` by address, `agents`: agent -> policy."""
        self._experience, self._engines, self._agents = experience, engines, agents
        self.plays: Callable[[rollout_pb2.RunGroupRequest], None] = lambda request: None
        self.outcome: Callable[[rollout_pb2.RunGroupRequest], str] = lambda request: "ok"
        self.reward: Callable[[rollout_pb2.RunGroupRequest], float] = lambda request: 1.0
        self.drops: Callable[[rollout_pb2.RunGroupRequest], bool] = lambda request: False
        self.silent: set[str] = set()
        """Agents that take no turn."""
        self.gates: dict[Place, asyncio.Event] = {}
        """Groups that are not done before their event is set."""
        self.place_gate: asyncio.Event | None = None
        """What it holds is not stored before it is set."""
        self.requests: list[rollout_pb2.RunGroupRequest] = []
        self.placed: dict[Place, Place] = {}
        """Groups that were held -> where they went."""
        self.on_stored: Callable[[Place], None] = lambda place: None
        """Sees where every group was stored, before anyone is told."""
        self.seconds = 0.0
        self._held: dict[Place, tuple[str, list[PolicySamples], bytes]] = {}

    def restart(self) -> None:
        """As a process that comes up and holds nothing."""
        self._held.clear()

    async def RunGroup(
        self, request: rollout_pb2.RunGroupRequest, context: Any
    ) -> rollout_pb2.GroupFinished:
        self.requests.append(request)
        self.plays(request)
        await asyncio.sleep(self.seconds)
        versions = {route.policy: self._version(route) for route in request.routes}
        if gate := self.gates.get((request.id.step, request.id.index)):
            await gate.wait()
        stored, samples = True, self._samples(request, versions)
        oldest = min((each.version for each in samples if each.sequences), default=None)
        dropped = self.drops(request) and not request.final
        if request.purpose == rollout_pb2.TRAIN and not dropped:
            if request.hold:
                held = request.task_id, samples, self._note(request)
                self._held[request.id.step, request.id.index] = held
            else:
                stored = await self._experience.append_group(
                    group_id_from_wire(request.id), request.task_id, samples, self._note(request)
                )
                self.on_stored((request.id.step, request.id.index))
        return self._finished(request, duplicate=not stored, dropped=dropped, oldest=oldest)

    async def PlaceGroup(
        self, request: rollout_pb2.PlaceGroupRequest, context: Any
    ) -> rollout_pb2.PlaceGroupResponse:
        played, place = group_id_from_wire(request.played), group_id_from_wire(request.place)
        if (played.step, played.index) not in self._held:
            raise NotFoundError(f"group {played} is not held here")
        if self.place_gate is not None:
            await self.place_gate.wait()
        task_id, samples, note = self._held[played.step, played.index]
        renamed = [
            PolicySamples(
                each.policy,
                each.version if each.sequences else place.step,
                tuple(
                    replace(one, id=f"{place}{one.id.removeprefix(str(played))}")
                    for one in each.sequences
                ),
            )
            for each in samples
        ]
        stored = await self._experience.append_group(place, task_id, renamed, note)
        self.placed[played.step, played.index] = place.step, place.index
        self.on_stored((place.step, place.index))
        return rollout_pb2.PlaceGroupResponse(duplicate=not stored)

    def _note(self, request: rollout_pb2.RunGroupRequest) -> bytes:
        said = self._finished(request, duplicate=False, dropped=False, oldest=None)
        scored = (
            (agent, stats.reward)
            for episode in said.episodes
            for agent, stats in episode.agents.items()
            if stats.HasField("reward")
        )
        drawn = (request.id.step, request.id.index) if request.hold else None
        return Note(evidence(scored, 1.0), drawn).encoded()

    def _version(self, route: rollout_pb2.Route) -> int:
        """That of an engine which serves the route. StalePolicyError: there is none."""
        oldest = route.min_version if route.HasField("min_version") else route.version
        for address in route.engines:
            engine = self._engines[address]
            if engine.policy == route.policy and oldest <= engine.version <= route.version:
                return engine.version
            if not route.HasField("min_version"):
                raise StalePolicyError(f"{address} holds {engine.policy} {engine.version}")
        if route.engines:
            raise StalePolicyError(f"no engine holds {route.policy} {oldest} to {route.version}")
        return route.version

    def _samples(
        self, request: rollout_pb2.RunGroupRequest, versions: dict[str, int]
    ) -> list[PolicySamples]:
        group = group_id_from_wire(request.id)
        found = []
        for policy in dict.fromkeys(self._agents.values()):
            version = versions.get(policy, 0)
            sequences = [
                _sequence(
                    group.sequence_id(episode, agent, 0), agent, episode, request.seed, version
                )
                for agent, own in self._agents.items()
                if own == policy and policy in versions and agent not in self.silent
                for episode in range(request.episodes)
                if self.outcome(request) == "ok"
            ]
            found.append(
                PolicySamples(policy, version if sequences else group.step, tuple(sequences))
            )
        return found

    def _finished(
        self,
        request: rollout_pb2.RunGroupRequest,
        *,
        duplicate: bool,
        dropped: bool,
        oldest: int | None,
    ) -> rollout_pb2.GroupFinished:
        outcome = self.outcome(request)
        good = outcome == "ok"
        routed = {route.policy for route in request.routes}
        transcript = json.dumps({"turns": []}) if request.transcripts else ""
        episode = rollout_pb2.EpisodeResult(
            outcome=outcome,
            transcript=transcript,
            detail="" if good else "ValueError: broken",
            agents={
                agent: rollout_pb2.AgentStats(
                    turns=1,
                    prompt_tokens=4,
                    sampled_tokens=2,
                    reward=self.reward(request) if good else None,
                )
                for agent, policy in self._agents.items()
                if policy in routed and agent not in self.silent
            },
        )
        return rollout_pb2.GroupFinished(
            id=request.id,
            duplicate=duplicate,
            episodes=[episode] * request.episodes,
            dropped=dropped,
            oldest_version=oldest,
        )


def tokens(seed: int, episode: int) -> list[int]:
    """What every agent says: a function of the group's seed."""
    return [1, seed % 1000, episode]


def _sequence(name: str, agent: str, episode: int, seed: int, version: int) -> Sequence:
    return Sequence(
        id=name,
        agent=agent,
        episode=episode,
        token_ids=np.array(tokens(seed, episode), dtype=np.int32),
        loss_mask=np.array([0, 1, 1], dtype=np.uint8),
        logprobs=np.array([0, -1, -2], dtype=np.float32),
        turns=(TurnSpan(1, 3, (VersionSpan(version, 0, 2),), "stop", 1.0),),
        reward=float(episode % 2),
    )


def register_worker(worker: FakeWorker) -> Callable[[grpc.aio.Server], None]:
    return lambda server: rollout_pb2_grpc.add_RolloutServicer_to_server(worker, server)
