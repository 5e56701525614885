"""The rollout service over a worker: translate, delegate, translate back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc.aio

from flexmarl.contracts.v1 import rollout_pb2, rollout_pb2_grpc, routing_pb2, routing_pb2_grpc
from flexmarl.data.tasks import Task
from flexmarl.experience.samples import group_id_from_wire, group_id_to_wire
from flexmarl.rollout.bindings import Bindings
from flexmarl.rollout.groups import AgentTally, GroupOrder, GroupResult, Played, RouteTo
from flexmarl.rollout.worker import Worker
from flexmarl.runtime.errors import InvalidRequestError


class RolloutService(rollout_pb2_grpc.RolloutServicer):
    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def RunGroup(
        self, request: rollout_pb2.RunGroupRequest, context: Any
    ) -> rollout_pb2.GroupFinished:
        return to_wire(await self._worker.run_group(from_wire(request)))

    async def PlaceGroup(
        self, request: rollout_pb2.PlaceGroupRequest, context: Any
    ) -> rollout_pb2.PlaceGroupResponse:
        played, place = group_id_from_wire(request.played), group_id_from_wire(request.place)
        duplicate = await self._worker.place_group(played, place)
        return rollout_pb2.PlaceGroupResponse(duplicate=duplicate)


class RoutingService(routing_pb2_grpc.RoutingServicer):
    def __init__(self, bindings: Bindings) -> None:
        self._bindings = bindings

    async def Bindings(
        self, request: routing_pb2.BindingsRequest, context: Any
    ) -> routing_pb2.BindingsResponse:
        order = request.incarnation, request.serial
        serving = {policy: each.engines for policy, each in request.policies.items()}
        self._bindings.tell(order, serving)
        return routing_pb2.BindingsResponse(
            policies={
                policy: routing_pb2.Work(turns=turns, done=done)
                for policy, (turns, done) in self._bindings.work().items()
            }
        )


def register(worker: Worker) -> Callable[[grpc.aio.Server], None]:
    """Adds the services of `worker` to a server."""

    def add(server: grpc.aio.Server) -> None:
        rollout_pb2_grpc.add_RolloutServicer_to_server(RolloutService(worker), server)
        routing_pb2_grpc.add_RoutingServicer_to_server(RoutingService(worker.bindings), server)

    return add


def from_wire(request: rollout_pb2.RunGroupRequest) -> GroupOrder:
    """InvalidRequestError when the task is no JSON object or no episode is asked for."""
    try:
        record = json.loads(request.task)
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"task is no JSON: {error}") from error
    if not isinstance(record, dict):
        raise InvalidRequestError(f"task is no JSON object: {request.task[:80]}")
    if request.episodes < 1:
        raise InvalidRequestError("episodes is 0")
    train = request.purpose == rollout_pb2.TRAIN
    if request.hold and not train:
        raise InvalidRequestError("hold: an evaluation stores nothing")
    return GroupOrder(
        id=group_id_from_wire(request.id),
        task=Task(request.task_id, record),
        episodes=request.episodes,
        seed=request.seed,
        routes=tuple(map(_route, request.routes)),
        train=train,
        transcripts=request.transcripts,
        hold=request.hold,
        final=request.final,
    )


def _route(route: rollout_pb2.Route) -> RouteTo:
    oldest = route.min_version if route.HasField("min_version") else None
    if oldest is not None and oldest > route.version:
        raise InvalidRequestError(
            f"policy {route.policy}: min_version is {oldest}, above the version {route.version}"
        )
    return RouteTo(route.policy, route.version, tuple(route.engines), oldest)


def to_wire(result: GroupResult) -> rollout_pb2.GroupFinished:
    transcripts = result.transcripts or ("",) * len(result.episodes)
    return rollout_pb2.GroupFinished(
        id=group_id_to_wire(result.id),
        duplicate=result.duplicate,
        episodes=map(_episode, result.episodes, transcripts),
        forks=result.forks,
        seconds=result.seconds,
        dropped=result.dropped,
        oldest_version=result.oldest_version,
        resumed_turns=result.resumed_turns,
        storing_seconds=result.storing,
    )


def _episode(played: Played, transcript: str) -> rollout_pb2.EpisodeResult:
    return rollout_pb2.EpisodeResult(
        outcome=played.outcome,
        agents={agent: _stats(tally) for agent, tally in played.tallies().items()},
        transcript=transcript,
        detail=played.detail,
    )


def _stats(tally: AgentTally) -> rollout_pb2.AgentStats:
    return rollout_pb2.AgentStats(
        turns=tally.turns,
        prompt_tokens=tally.prompt_tokens,
        sampled_tokens=tally.sampled_tokens,
        reward=tally.reward,
    )
