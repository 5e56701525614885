"""What a worker and a trainer do with an engine, for the tests of engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from flexmarl.contracts.policy import PolicySpec, ScriptedArgs
from flexmarl.contracts.v1 import engine_pb2, engine_pb2_grpc, weights_pb2
from flexmarl.models.bytes_tokenizer import BytesTokenizer
from flexmarl.models.causal_lm import build_model
from flexmarl.rollout.engines.base import Backend, WeightsAccess
from flexmarl.rollout.engines.invariant import InvariantBackend
from flexmarl.rollout.engines.scripted import ScriptedBackend
from flexmarl.rollout.engines.transformers_engine import TransformersBackend
from flexmarl.tensors.layout import WEIGHTS
from flexmarl.tensors.sets import TensorSet
from flexmarl.tensors.torch_bridge import commit, layout_of, named_tensors

POLICY = PolicySpec.model_validate(
    {
        "name": "a",
        "model": {
            "uri": "random://llama?hidden=32&layers=2&heads=4&kv_heads=2&intermediate=64&context=4096"
        },
    }
)
LONG = 3000
"""Tokens of a turn that is still running whenever a test looks."""


class Result(NamedTuple):
    ids: list[int]
    logprobs: NDArray[np.float32]
    reason: str
    versions: list[tuple[int, int, int]]


class Client:
    """What a worker does with an engine."""

    def __init__(self, stub: engine_pb2_grpc.EngineAsyncStub) -> None:
        self.stub = stub

    def call(
        self, turns: Sequence[engine_pb2.TurnRequest], version: int = 0, policy: str = "a"
    ) -> AsyncIterator[engine_pb2.GenerateResponse]:
        request = engine_pb2.GenerateRequest(policy=policy, version=version, turns=turns)
        return self.stub.Generate(request, timeout=60)  # type: ignore[return-value]

    async def generate(
        self, *turns: engine_pb2.TurnRequest, version: int = 0, policy: str = "a"
    ) -> dict[str, Result]:
        """Id -> result, in the order in which they came."""
        results = {}
        async for response in self.call(turns, version, policy):
            for turn in response.turns:
                results[turn.id] = Result(
                    np.frombuffer(turn.token_ids, "<i4").tolist(),
                    np.frombuffer(turn.logprobs, "<f4"),
                    turn.finish_reason,
                    [(span.version, span.start, span.end) for span in turn.versions],
                )
        return results

    async def load(
        self, ref: weights_pb2.WeightsRef, policy: str = "a"
    ) -> engine_pb2.LoadWeightsResponse:
        request = engine_pb2.LoadWeightsRequest(policy=policy, weights=ref)
        return await self.stub.LoadWeights(request, timeout=60)

    async def pause(self, mode: engine_pb2.PauseRequest.Mode.ValueType) -> None:
        await self.stub.Pause(engine_pb2.PauseRequest(mode=mode), timeout=60)

    async def resume(self) -> None:
        await self.stub.Resume(engine_pb2.ResumeRequest(), timeout=60)

    async def abort(self, *ids: str) -> None:
        await self.stub.Abort(engine_pb2.AbortRequest(ids=ids), timeout=60)

    async def stats(self) -> engine_pb2.StatsResponse:
        return await self.stub.Stats(engine_pb2.StatsRequest(), timeout=60)

    async def until(self, condition: Callable[[engine_pb2.StatsResponse], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition(await self.stats()):  # noqa: ASYNC110 - it lies in the engine
                await asyncio.sleep(0.001)

    async def until_running(self, turns: int = 1) -> None:
        """Return once so many turns run and have sampled something."""
        before = (await self.stats()).generated_tokens
        await self.until(
            lambda stats: stats.running >= turns and stats.generated_tokens > before + turns
        )


def turn(
    id_: str,
    prompt: Sequence[int] | str = "hello",
    *,
    seed: int = 0,
    max_tokens: int = 40,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    stop: Sequence[int] = (),
) -> engine_pb2.TurnRequest:
    ids = BytesTokenizer().encode(prompt) if isinstance(prompt, str) else prompt
    return engine_pb2.TurnRequest(
        id=id_,
        prompt_ids=np.asarray(ids, "<i4").tobytes(),
        seed=seed,
        sampling=engine_pb2.Sampling(
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            stop_token_ids=stop,
        ),
    )


class Weights:
    """A trainer's side: versions of the policy's weights in a tensor set of their own."""

    def __init__(self, shm_dir: Path) -> None:
        self.shm_dir = shm_dir
        self._model = self.model(0)
        tensors = self._named(self._model)
        self.set = TensorSet.create(shm_dir, "job.a", layout_of(tensors))

    @staticmethod
    def model(seed: int) -> PreTrainedModel:
        return build_model(POLICY, Path(), seed)

    @staticmethod
    def _named(model: PreTrainedModel) -> dict[str, torch.Tensor]:
        return {WEIGHTS + name: tensor for name, tensor in named_tensors(model).items()}

    def publish(self, version: int) -> weights_pb2.WeightsRef:
        """Commit the weights that seed `version` gives."""
        committed = commit(self.set, version, self._named(self.model(version)))
        return weights_pb2.WeightsRef(set="job.a", version=version, checksum=committed.checksum)


def make_backend(kind: str, shm_dir: Path, eos: Sequence[int] = ()) -> Backend:
    """An engine that ends no turn by itself, unless at `eos` (with a model only)."""
    access = WeightsAccess(shm_dir)
    if kind == "scripted":
        args = ScriptedArgs(median_tokens=1 << 19, p99_tokens=1 << 19, tokens_per_second=2000)
        return ScriptedBackend(args, BytesTokenizer(), access)
    model = build_model(POLICY, Path(), seed=99)
    backend = InvariantBackend if kind == "deterministic" else TransformersBackend
    return backend(model, eos, max_concurrent_turns=64, access=access)
