"""Engine over gRPC: translate, delegate, translate back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias, cast

import grpc
import grpc.aio
import numpy as np

from flexmarl.contracts.v1 import engine_pb2, engine_pb2_grpc, experience_pb2
from flexmarl.rollout.engines.base import (
    Engine,
    PauseMode,
    Sampling,
    TurnRequest,
    TurnResult,
)
from flexmarl.runtime.errors import FencedError, InvalidRequestError

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
PAUSE_MODES = {
    engine_pb2.PauseRequest.ABORT: PauseMode.ABORT,
    engine_pb2.PauseRequest.WAIT: PauseMode.WAIT,
    engine_pb2.PauseRequest.KEEP: PauseMode.KEEP,
}


class EngineService(engine_pb2_grpc.EngineServicer):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._incarnation = 0
        """The highest that has loaded weights: an orchestrator that was replaced may not."""

    async def Generate(
        self, request: engine_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[engine_pb2.GenerateResponse]:
        turns = [turn_from_wire(turn) for turn in request.turns]
        oldest = request.min_version if request.HasField("min_version") else None
        finished = self._engine.generate(request.policy, request.version, turns, oldest)
        async with aclosing(cast(AsyncGenerator[list[TurnResult]], finished)) as steps:
            async for results in steps:
                yield engine_pb2.GenerateResponse(
                    turns=[result_to_wire(result) for result in results],
                    outstanding_tokens=self._engine.stats().outstanding_tokens,
                )

    async def LoadWeights(
        self, request: engine_pb2.LoadWeightsRequest, context: Context
    ) -> engine_pb2.LoadWeightsResponse:
        if request.incarnation < self._incarnation:
            raise FencedError(
                f"weights of {request.policy} are loaded for incarnation {self._incarnation} of "
                f"the job, not for {request.incarnation}"
            )
        self._incarnation = request.incarnation
        weights = request.weights if request.HasField("weights") else None
        loaded = await self._engine.load_weights(request.policy, weights)
        return engine_pb2.LoadWeightsResponse(
            version=loaded.version,
            checksum=loaded.checksum,
            seconds=loaded.seconds,
            transport=loaded.transport,
        )

    async def Pause(
        self, request: engine_pb2.PauseRequest, context: Context
    ) -> engine_pb2.PauseResponse:
        mode = PAUSE_MODES.get(request.mode)
        if mode is None:
            raise InvalidRequestError(f"unknown pause mode {request.mode}")
        await self._engine.pause(mode)
        return engine_pb2.PauseResponse()

    async def Resume(
        self, request: engine_pb2.ResumeRequest, context: Context
    ) -> engine_pb2.ResumeResponse:
        await self._engine.resume()
        return engine_pb2.ResumeResponse()

    async def Abort(
        self, request: engine_pb2.AbortRequest, context: Context
    ) -> engine_pb2.AbortResponse:
        await self._engine.abort(request.ids)
        return engine_pb2.AbortResponse()

    async def Stats(
        self, request: engine_pb2.StatsRequest, context: Context
    ) -> engine_pb2.StatsResponse:
        stats = self._engine.stats()
        loaded = stats.loaded
        return engine_pb2.StatsResponse(
            policy=loaded.policy if loaded else "",
            version=loaded.version if loaded else 0,
            checksum=loaded.checksum if loaded else "",
            loaded=loaded is not None,
            running=stats.running,
            waiting=stats.waiting,
            outstanding_tokens=stats.outstanding_tokens,
            generated_tokens=stats.generated_tokens,
            calls=stats.calls,
            turns=stats.turns,
            incarnation=self._incarnation,
        )


def turn_from_wire(turn: engine_pb2.TurnRequest) -> TurnRequest:
    """InvalidRequestError when the ids are no whole number of int32."""
    if len(turn.prompt_ids) % 4:
        raise InvalidRequestError(f"turn {turn.id}: prompt_ids is {len(turn.prompt_ids)} bytes")
    sampling = turn.sampling
    return TurnRequest(
        id=turn.id,
        prompt_ids=np.frombuffer(turn.prompt_ids, "<i4"),
        seed=turn.seed,
        sampling=Sampling(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop_token_ids=tuple(sampling.stop_token_ids),
        ),
        resumed=turn.resumed,
    )


def result_to_wire(result: TurnResult) -> engine_pb2.TurnResult:
    return engine_pb2.TurnResult(
        id=result.id,
        token_ids=result.token_ids.astype("<i4", copy=False).tobytes(),
        logprobs=result.logprobs.astype("<f4", copy=False).tobytes(),
        finish_reason=result.finish_reason,
        versions=_spans(result.versions),
    )


def _spans(spans: Sequence[tuple[int, int, int]]) -> list[experience_pb2.VersionSpan]:
    return [
        experience_pb2.VersionSpan(version=version, start=start, end=end)
        for version, start, end in spans
    ]
