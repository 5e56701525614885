"""Workers, engines and trainers that do the least their protocols promise, and fail on demand.

They speak real gRPC and use the real experience service. Weights are a version and a checksum that
depends on every group trained so far, so that a group trained twice or not at all shows.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np

from flexmarl.contracts.v1 import (
    engine_pb2,
    engine_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
)
from flexmarl.contracts.v1.weights_pb2 import WeightsRef
from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.samples import (
    PolicySamples,
    Sequence,
    TurnSpan,
    VersionSpan,
    group_id_from_wire,
)
from flexmarl.runtime.errors import (
    FencedError,
    NotFoundError,
    StalePolicyError,
    UnavailableError,
)

START = "start"


@dataclass(frozen=True)
class State:
    """A policy's committed state."""

    version: int
    history: str
    """Digest of every group trained so far, in index order within a step."""


@dataclass
class Memory:
    """The shared memory of a pod: outlives the processes in it."""

    states: dict[str, State] = field(default_factory=dict)


class FakeEngine(engine_pb2_grpc.EngineServicer):
    def __init__(self) -> None:
        self.policy, self.version, self.checksum = "", 0, ""
        self.loads: list[tuple[str, int]] = []
        self.corrupt = False
        self.on_load: Callable[[int], None] = lambda version: None

    def restart(self) -> None:
        """As a process that comes up with nothing loaded."""
        self.policy = ""

    async def LoadWeights(self, request: Any, context: Any) -> engine_pb2.LoadWeightsResponse:
        weights = request.weights
        self.on_load(weights.version)
        self.policy, self.version = request.policy, weights.version
        self.checksum = "corrupt" if self.corrupt else weights.checksum
        self.loads.append((self.policy, self.version))
        return engine_pb2.LoadWeightsResponse(version=self.version, checksum=self.checksum)

    async def Generate(
        self, request: Any, context: Any
    ) -> AsyncIterator[engine_pb2.GenerateResponse]:
        raise NotImplementedError
        yield

    async def Pause(self, request: Any, context: Any) -> engine_pb2.PauseResponse:
        raise NotImplementedError

    async def Resume(self, request: Any, context: Any) -> engine_pb2.ResumeResponse:
        raise NotImplementedError

    async def Abort(self, request: Any, context: Any) -> engine_pb2.AbortResponse:
        raise NotImplementedError

    async def Stats(self, request: Any, context: Any) -> engine_pb2.StatsResponse:
        return engine_pb2.StatsResponse(
            policy=self.policy,
            version=self.version,
            checksum=self.checksum,
            loaded=bool(self.policy),
        )


class FakeTrainer(trainer_pb2_grpc.TrainerServicer):
    """One slot; `ledger` is shared by all slots."""

    def __init__(self, experience: ExperienceClient, memory: Memory, ledger: Ledger) -> None:
        self._experience, self.memory, self._ledger = experience, memory, ledger
        self._bound: tuple[str, int] | None = None
        self.binds: list[str] = []
        self.on_group: Callable[[str, int, int], None] = lambda policy, step, index: None
        self.on_commit: Callable[[str, int], None] = lambda policy, step: None
        self.learns = True

    def restart(self) -> None:
        """As a process that comes up bound to nothing; its memory stays."""
        self._bound = None

    async def Bind(self, request: Any, context: Any) -> trainer_pb2.BindResponse:
        if self._bound and self._bound[0] == request.policy and self._bound[1] > request.epoch:
            raise FencedError(f"epoch {request.epoch} is over")
        state = self.memory.states.get(request.policy)
        if state and (
            state.version < request.version
            or (request.discard and state.version != request.version)
        ):
            state = None
        if state is None and request.kept:
            raise NotFoundError(f"version {request.version} of {request.policy} is gone")
        if state is None and request.checkpoint:
            state = State(**json.loads((Path(request.checkpoint) / "state.json").read_text()))
        if state is None and request.version:
            raise NotFoundError(f"version {request.version} of {request.policy}")
        self.memory.states[request.policy] = state or State(0, START)
        self._bound = (request.policy, request.epoch)
        self.binds.append(request.policy)
        return trainer_pb2.BindResponse(weights=self._ref(request.policy))

    async def Unbind(self, request: Any, context: Any) -> trainer_pb2.UnbindResponse:
        self._bound = None
        return trainer_pb2.UnbindResponse()

    async def TrainStep(self, request: Any, context: Any) -> trainer_pb2.TrainStepResponse:
        policy, epoch, step = request.policy, request.epoch, request.step
        if self._bound != (policy, epoch):
            raise StalePolicyError(f"{policy} is not bound with epoch {epoch}")
        if self.memory.states[policy].version == step:
            groups = await self._leased(policy, epoch, step, request.groups)
            history = after(self.memory.states[policy].history, groups)
            if self._bound != (policy, epoch):
                raise UnavailableError("killed")
            self.memory.states[policy] = State(step + 1, history)
            self._ledger.train(policy, step, groups)
        await self._experience.commit(policy, epoch, step)
        self.on_commit(policy, step)
        return trainer_pb2.TrainStepResponse(
            weights=self._ref(policy), updated=self.learns, metrics={"loss": 0.5}
        )

    async def SaveCheckpoint(
        self, request: Any, context: Any
    ) -> trainer_pb2.SaveCheckpointResponse:
        state = self.memory.states[request.policy]
        text = json.dumps({"version": state.version, "history": state.history})
        await asyncio.to_thread(_write, Path(request.directory), text)
        return trainer_pb2.SaveCheckpointResponse(version=state.version, files=["state.json"])

    async def _leased(self, policy: str, epoch: int, step: int, count: int) -> dict[int, str]:
        """Index -> what was in the group, of all groups of the step."""
        found: dict[int, str] = {}
        cursor = ""
        while len(found) < count:
            lease = await self._experience.lease(policy, epoch, step, cursor, wait=0.2)
            cursor = lease.cursor
            for group in lease.groups:
                assert group.samples.version == step
                if group.id.index not in found:
                    found[group.id.index] = content(group.task_id, group.samples)
                self.on_group(policy, step, group.id.index)
        return found

    def _ref(self, policy: str) -> WeightsRef:
        state = self.memory.states[policy]
        return WeightsRef(
            set=f"uid.{policy}", version=state.version, checksum=f"{policy}/{state.history}"
        )


def _write(directory: Path, text: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "state.json").write_text(text)


def content(task_id: str, samples: PolicySamples) -> str:
    ids = [sequence.token_ids.tolist() for sequence in samples.sequences]
    return f"{task_id}:{ids}"


def after(history: str, groups: dict[int, str]) -> str:
    """The history of a policy that was trained on `groups`."""
    for index in sorted(groups):
        history = hashlib.sha256(f"{history} {groups[index]}".encode()).hexdigest()
    return history


@dataclass
class Ledger:
    """What was trained last in each (policy, step), and how often, over all restarts."""

    trained: dict[tuple[str, int], dict[int, str]] = field(default_factory=dict)
    times: Counter[tuple[str, int]] = field(default_factory=Counter)

    def train(self, policy: str, step: int, groups: dict[int, str]) -> None:
        self.trained[policy, step] = groups
        self.times[policy, step] += 1


class FakeWorker(rollout_pb2_grpc.RolloutServicer):
    """Plays by asking the engines what they hold; `plays` sees every group first."""

    def __init__(
        self, experience: ExperienceClient, engines: dict[str, FakeEngine], agents: dict[str, str]
    ) -> None:
        """`engines` by address, `agents`: agent -> policy."""
        self._experience, self._engines, self._agents = experience, engines, agents
        self.plays: Callable[[rollout_pb2.RunGroupRequest], None] = lambda request: None
        self.outcome = "ok"
        self.requests: list[rollout_pb2.RunGroupRequest] = []
        self.seconds = 0.0

    async def RunGroup(
        self, request: rollout_pb2.RunGroupRequest, context: Any
    ) -> rollout_pb2.GroupFinished:
        self.requests.append(request)
        self.plays(request)
        await asyncio.sleep(self.seconds)
        for route in request.routes:
            for address in route.engines:
                engine = self._engines[address]
                if (engine.policy, engine.version) != (route.policy, route.version):
                    raise StalePolicyError(f"{address} holds {engine.policy} {engine.version}")
        stored = True
        if request.purpose == rollout_pb2.TRAIN:
            stored = await self._experience.append_group(
                group_id_from_wire(request.id), request.task_id, self._samples(request)
            )
        return self._finished(request, duplicate=not stored)

    def _samples(self, request: rollout_pb2.RunGroupRequest) -> list[PolicySamples]:
        group = group_id_from_wire(request.id)
        found = []
        for policy in dict.fromkeys(self._agents.values()):
            version = next(r.version for r in request.routes if r.policy == policy)
            sequences = [
                _sequence(
                    group.sequence_id(episode, agent, 0), agent, episode, request.seed, version
                )
                for agent, own in self._agents.items()
                if own == policy
                for episode in range(request.episodes)
            ]
            found.append(PolicySamples(policy, version, tuple(sequences)))
        return found

    def _finished(
        self, request: rollout_pb2.RunGroupRequest, *, duplicate: bool
    ) -> rollout_pb2.GroupFinished:
        good = self.outcome == "ok"
        transcript = json.dumps({"turns": []}) if request.transcripts else ""
        episode = rollout_pb2.EpisodeResult(
            outcome=self.outcome,
            transcript=transcript,
            detail="" if good else "ValueError: broken",
            agents={
                agent: rollout_pb2.AgentStats(
                    turns=1, prompt_tokens=4, sampled_tokens=2, reward=1.0 if good else None
                )
                for agent in self._agents
            },
        )
        return rollout_pb2.GroupFinished(
            id=request.id, duplicate=duplicate, episodes=[episode] * request.episodes
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


def register_engine(engine: FakeEngine) -> Callable[[grpc.aio.Server], None]:
    return lambda server: engine_pb2_grpc.add_EngineServicer_to_server(engine, server)


def register_trainer(trainer: FakeTrainer) -> Callable[[grpc.aio.Server], None]:
    return lambda server: trainer_pb2_grpc.add_TrainerServicer_to_server(trainer, server)


def register_worker(worker: FakeWorker) -> Callable[[grpc.aio.Server], None]:
    return lambda server: rollout_pb2_grpc.add_RolloutServicer_to_server(worker, server)
