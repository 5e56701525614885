"""A small engine on a real gRPC server, and a worker in front of it, for tests of the rollout."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import engine_pb2, engine_pb2_grpc, rollout_pb2, rollout_pb2_grpc
from flexmarl.experience.samples import GroupId, PolicySamples, from_wire, to_wire
from flexmarl.models.bytes_tokenizer import BytesTokenizer
from flexmarl.rollout.engine_pool import EnginePool
from flexmarl.rollout.process import working
from flexmarl.rollout.server import RolloutService
from flexmarl.runtime.errors import InvalidRequestError, StalePolicyError
from flexmarl.runtime.grpc import channel, serving

TOKEN = "secret"
END = 256


class SmallEngine(engine_pb2_grpc.EngineServicer):
    """Says what `say` makes of the prompt's text, each turn when its time has come."""

    def __init__(self, policy: str = "solver", version: int = 1) -> None:
        self.policy, self.version, self.loaded = policy, version, True
        self.say: Callable[[str], str] = lambda prompt: "ok"
        self.wait: Callable[[str], Awaitable[None]] | None = None
        self.requests: list[engine_pb2.GenerateRequest] = []
        self.aborted: list[str] = []
        self.finish = "stop"
        self.answered_version: int | None = None
        self.logprob = -0.5
        self.end = END
        self.cuts: list[int] = []
        """After so many tokens each, turns are cut by an update to the next version."""
        self._tokens = BytesTokenizer()

    @property
    def turns(self) -> list[engine_pb2.TurnRequest]:
        return [turn for request in self.requests for turn in request.turns]

    async def Generate(
        self, request: engine_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[engine_pb2.GenerateResponse]:
        self.requests.append(request)
        oldest = request.min_version if request.HasField("min_version") else request.version
        fits = request.policy == self.policy and oldest <= self.version <= request.version
        if not (self.loaded and fits):
            raise StalePolicyError(f"{self.policy} is at version {self.version}")
        for turn in request.turns:
            if len(turn.prompt_ids) > 4 * 10_000:
                raise InvalidRequestError("the prompt is longer than the context")
        for done in asyncio.as_completed([self._answer(turn) for turn in request.turns]):
            yield engine_pb2.GenerateResponse(turns=[await done], outstanding_tokens=7)

    async def _answer(self, turn: engine_pb2.TurnRequest) -> engine_pb2.TurnResult:
        prompt = self._tokens.decode(np.frombuffer(turn.prompt_ids, "<i4").tolist())
        if self.wait is not None:
            await self.wait(prompt)
        ids = np.asarray([*self._tokens.encode(self.say(prompt)), self.end], dtype="<i4")
        version = self.version if self.answered_version is None else self.answered_version
        finish = self.finish
        if self.cuts:
            ids, finish = ids[: self.cuts.pop(0)], "abort"
            self.version += 1
        if len(ids) > turn.sampling.max_tokens:
            ids, finish = ids[: turn.sampling.max_tokens], "length"
        result = engine_pb2.TurnResult(
            id=turn.id,
            token_ids=ids.tobytes(),
            logprobs=np.full(len(ids), self.logprob, dtype="<f4").tobytes(),
            finish_reason=finish,
        )
        if len(ids):
            result.versions.add(version=version, start=0, end=len(ids))
        return result

    async def Abort(
        self, request: engine_pb2.AbortRequest, context: Any
    ) -> engine_pb2.AbortResponse:
        self.aborted += request.ids
        return engine_pb2.AbortResponse()

    async def Stats(
        self, request: engine_pb2.StatsRequest, context: Any
    ) -> engine_pb2.StatsResponse:
        return engine_pb2.StatsResponse(
            policy=self.policy, version=self.version, loaded=self.loaded
        )

    async def LoadWeights(self, request: Any, context: Any) -> engine_pb2.LoadWeightsResponse:
        raise InvalidRequestError("the worker never loads weights")

    async def Pause(self, request: Any, context: Any) -> engine_pb2.PauseResponse:
        raise InvalidRequestError("the worker never pauses an engine")

    async def Resume(self, request: Any, context: Any) -> engine_pb2.ResumeResponse:
        raise InvalidRequestError("the worker never resumes an engine")


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder whose paths are short enough for unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="fm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def small_engine() -> type[SmallEngine]:
    return SmallEngine


@pytest.fixture
def serve_engine(sockets: Path) -> Callable[[SmallEngine, str], Any]:
    """`async with serve_engine(engine, name) as address`."""

    @asynccontextmanager
    async def serve(engine: SmallEngine, name: str = "e") -> AsyncIterator[str]:
        address = f"unix://{sockets}/{name}.sock"

        def register(server: Any) -> None:
            engine_pb2_grpc.add_EngineServicer_to_server(engine, server)

        async with serving(register, address, token=TOKEN, drain_seconds=0) as bound:
            yield bound

    return serve


@pytest.fixture
async def pool() -> AsyncIterator[EnginePool]:
    async with EnginePool(TOKEN, call_seconds=30, retry_seconds=20) as made:
        yield made


class KeptGroups:
    """Stands for the experience store; what it keeps went over the wire's format."""

    def __init__(self) -> None:
        self.groups: dict[GroupId, dict[str, PolicySamples]] = {}

    async def append_group(
        self, group: GroupId, task_id: str, samples: Any, note: bytes = b"", **when: Any
    ) -> bool:
        if group in self.groups:
            return False
        self.groups[group] = {
            each.policy: from_wire(to_wire(each, group), group) for each in samples
        }
        return True


@pytest.fixture
def kept_groups() -> KeptGroups:
    return KeptGroups()


class Stage:
    """A worker behind gRPC, its engines and what it stored."""

    def __init__(self, stub: Any, engines: dict[str, SmallEngine], addresses: dict[str, str]):
        self.stub, self.engines, self.addresses = stub, engines, addresses
        self.kept = KeptGroups()

    def request(self, **changes: Any) -> rollout_pb2.RunGroupRequest:
        request = rollout_pb2.RunGroupRequest(
            task_id="t",
            task='{"question": "1+1", "answer": "2"}',
            episodes=4,
            seed=11,
            **changes,
        )
        if not changes.get("id"):
            request.id.incarnation, request.id.step, request.id.index = 1, 1, 0
        for name, engine in self.engines.items():
            request.routes.add(policy=name, version=engine.version, engines=[self.addresses[name]])
        return request

    async def run(self, **changes: Any) -> rollout_pb2.GroupFinished:
        finished: rollout_pb2.GroupFinished = await self.stub.RunGroup(
            self.request(**changes), timeout=30
        )
        return finished

    @property
    def samples(self) -> dict[str, PolicySamples]:
        (group,) = self.kept.groups.values()
        return group


@pytest.fixture
def stage(
    sockets: Path, tmp_path: Path, serve_engine: Callable[[SmallEngine, str], Any]
) -> Iterator[Callable[..., Any]]:
    """`async with stage(spec_yaml, code) as Stage`; `code` is the module `mine` of the user."""

    @asynccontextmanager
    async def make(spec: str, code: str = "", store: Any = None) -> AsyncIterator[Stage]:
        (tmp_path / "mine.py").write_text(code)
        job = MARLJob.model_validate(
            {
                "metadata": {"name": "test"},
                "spec": {
                    "policies": [
                        {
                            "name": "solver",
                            "model": {"uri": "random://llama?hidden=64&layers=2&heads=4"},
                        },
                    ],
                    "agents": [{"name": "solver", "policy": "solver"}],
                    "code": {"path": "."},
                    "data": {"uri": "file://x.jsonl"},
                    "steps": 1,
                    **yaml.safe_load(spec),
                },
            }
        )
        async with AsyncExitStack() as stack:
            engines = {
                policy.name: SmallEngine(policy.name)
                for policy in job.spec.policies
                if not policy.external
            }
            addresses = {
                name: await stack.enter_async_context(serve_engine(engine, name))
                for name, engine in engines.items()
            }
            stage = Stage(None, engines, addresses)
            worker = await stack.enter_async_context(
                working(job, tmp_path, TOKEN, store or stage.kept)
            )

            def register(server: Any) -> None:
                rollout_pb2_grpc.add_RolloutServicer_to_server(RolloutService(worker), server)

            address = f"unix://{sockets}/worker.sock"
            await stack.enter_async_context(serving(register, address, token=TOKEN))
            connection = await stack.enter_async_context(channel(address, TOKEN))
            stage.stub = rollout_pb2_grpc.RolloutStub(connection)
            yield stage

    yield make
    sys.modules.pop("mine", None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))
