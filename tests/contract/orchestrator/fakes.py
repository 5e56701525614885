"""Engines and trainers that do the least their protocols promise, and fail on demand;
workers are in `players`.

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

from flexmarl.contracts.v1 import (
    engine_pb2,
    engine_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
)
from flexmarl.contracts.v1.weights_pb2 import WeightsRef
from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.samples import PolicySamples
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


STORE_SECONDS = 0.25
"""By which the store held up each trainer, as it says."""


class FakeEngine(engine_pb2_grpc.EngineServicer):
    def __init__(self) -> None:
        self.policy, self.version, self.checksum = "", 0, ""
        self.loads: list[tuple[str, int]] = []
        self.incarnation = 0
        self.corrupt = False
        self.on_load: Callable[[int], None] = lambda version: None
        self.gates: dict[int, asyncio.Event] = {}
        """Versions that take until their event is set to be loaded."""

    def restart(self) -> None:
        """As a process that comes up with nothing loaded."""
        self.policy, self.incarnation = "", 0

    async def LoadWeights(self, request: Any, context: Any) -> engine_pb2.LoadWeightsResponse:
        if request.incarnation < self.incarnation:
            raise FencedError(f"incarnation {self.incarnation} is here")
        self.incarnation = request.incarnation
        weights = request.weights
        self.on_load(weights.version)
        if gate := self.gates.get(weights.version):
            await gate.wait()
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
            incarnation=self.incarnation,
        )


class FakeTrainer(trainer_pb2_grpc.TrainerServicer):
    """One slot; `ledger` is shared by all slots."""

    def __init__(
        self, experience: ExperienceClient, memory: Memory, ledger: Ledger, staleness: int = 0
    ) -> None:
        self._experience, self.memory, self._ledger = experience, memory, ledger
        self._staleness = staleness
        self._bound: tuple[str, int] | None = None
        self.binds: list[str] = []
        self.on_bind: Callable[[str], None] = lambda policy: None
        self.on_group: Callable[[str, int, int], None] = lambda policy, step, index: None
        self.gates: dict[tuple[str, int], asyncio.Event] = {}
        """Policy and step whose training lasts until its event is set."""
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
            assert request.checksum == f"{request.policy}/{state.history}"  # as it was published
        if state is None and request.version:
            raise NotFoundError(f"version {request.version} of {request.policy}")
        self.memory.states[request.policy] = state or State(0, START)
        self._bound = (request.policy, request.epoch)
        self.binds.append(request.policy)
        self.on_bind(request.policy)
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
            if gate := self.gates.get((policy, step)):
                await gate.wait()
            history = after(self.memory.states[policy].history, groups)
            if self._bound != (policy, epoch):
                raise UnavailableError("killed")
            self.memory.states[policy] = State(step + 1, history)
            self._ledger.train(policy, step, groups)
        await self._experience.commit(policy, epoch, step)
        self.on_commit(policy, step)
        return trainer_pb2.TrainStepResponse(
            weights=self._ref(policy),
            updated=self.learns,
            metrics={"loss": 0.5, "store_seconds": STORE_SECONDS},
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
                assert step - self._staleness <= group.samples.version <= step
                for sequence in group.samples.sequences:
                    assert sequence.id.startswith(f"{group.id}/")
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

    def tasks(self, policy: str) -> Counter[str]:
        """Ids of the tasks that the policy was trained on."""
        groups = [groups for (name, _), groups in self.trained.items() if name == policy]
        return Counter(text.split(":")[0] for own in groups for text in own.values())

    def train(self, policy: str, step: int, groups: dict[int, str]) -> None:
        self.trained[policy, step] = groups
        self.times[policy, step] += 1


def register_engine(engine: FakeEngine) -> Callable[[grpc.aio.Server], None]:
    return lambda server: engine_pb2_grpc.add_EngineServicer_to_server(engine, server)


def register_trainer(trainer: FakeTrainer) -> Callable[[grpc.aio.Server], None]:
    return lambda server: trainer_pb2_grpc.add_TrainerServicer_to_server(trainer, server)
