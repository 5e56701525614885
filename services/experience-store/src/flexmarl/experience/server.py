"""The experience service: translate, delegate to the store, translate back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import grpc.aio
from google.protobuf.message import DecodeError

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.contracts.v1 import experience_pb2_grpc as pb_grpc
from flexmarl.experience.leases import MAX_LEASE_GROUPS, Wanted
from flexmarl.experience.moments import CLOCK_ID, now, stamp
from flexmarl.experience.store import StoredStep
from flexmarl.experience.wire import Part, read_append
from flexmarl.runtime.errors import FlexMARLError, InvalidRequestError
from flexmarl.runtime.grpc import Register, exchange_handler


class Groups(Protocol):
    """What the service needs of a store."""

    async def take_incarnation(self) -> int: ...
    async def roll_back(self, incarnation: int, step: int) -> None: ...
    async def take_epoch(self, policy: str, incarnation: int) -> int: ...
    async def check_epoch(self, policy: str, epoch: int) -> None: ...
    async def append(
        self, groups: Sequence[Part], played: Sequence[float] = ()
    ) -> list[bool | FlexMARLError]: ...
    async def lease(self, wanted: Wanted, *, wait: float, lacking: int = 0) -> bytes: ...
    async def commit(self, policy: str, epoch: int, step: int, *, keep: int = 0) -> int: ...
    async def stored(self, step: int) -> StoredStep: ...
    async def close_step(self, incarnation: int, step: int) -> None: ...
    async def get_state(self) -> dict[str, str]: ...
    async def put_state(self, incarnation: int, fields: Mapping[str, str]) -> None: ...


class ExperienceService(pb_grpc.ExperienceServicer):
    """What carries arrays comes and goes as bytes, see `register`.

    AppendGroups and Lease answer one request of a stream each, not the stream as the generated
    class has it: `exchange_handler` reads and writes that one, hence what is ignored.
    """

    def __init__(self, store: Groups) -> None:
        self._store = store

    async def TakeIncarnation(
        self, request: pb.TakeIncarnationRequest, context: Any
    ) -> pb.TakeIncarnationResponse:
        return pb.TakeIncarnationResponse(incarnation=await self._store.take_incarnation())

    async def RollBack(self, request: pb.RollBackRequest, context: Any) -> pb.RollBackResponse:
        await self._store.roll_back(request.incarnation, request.step)
        return pb.RollBackResponse()

    async def TakeEpoch(self, request: pb.TakeEpochRequest, context: Any) -> pb.TakeEpochResponse:
        epoch = await self._store.take_epoch(request.policy, request.incarnation)
        return pb.TakeEpochResponse(epoch=epoch)

    async def CheckEpoch(
        self, request: pb.CheckEpochRequest, context: Any
    ) -> pb.CheckEpochResponse:
        await self._store.check_epoch(request.policy, request.epoch)
        return pb.CheckEpochResponse()

    async def AppendGroups(  # type: ignore[override]
        self, request: Any, context: Any
    ) -> pb.AppendGroupsResponse:
        received = now()
        try:
            groups, rest = read_append(request)
        except DecodeError as error:
            raise InvalidRequestError(f"these are no groups: {error}") from error
        played = rest.played if rest.clock == CLOCK_ID else ()
        outcomes = await self._store.append(groups, played)
        return pb.AppendGroupsResponse(groups=map(_outcome, outcomes), clock=stamp(received))

    async def Lease(self, request: pb.LeaseRequest, context: Any) -> Any:  # type: ignore[override]
        most = min(request.max_groups or MAX_LEASE_GROUPS, MAX_LEASE_GROUPS)
        wanted = Wanted(
            policy=request.policy,
            epoch=request.epoch,
            step=request.step,
            cursor=request.cursor,
            limit=most,
            indexes=frozenset(request.indexes),
        )
        return await self._store.lease(wanted, wait=request.wait_ms / 1000, lacking=request.lacking)

    async def Commit(self, request: pb.CommitRequest, context: Any) -> pb.CommitResponse:
        deleted = await self._store.commit(
            request.policy, request.epoch, request.step, keep=request.keep
        )
        return pb.CommitResponse(deleted=deleted)

    async def Stored(self, request: pb.StoredRequest, context: Any) -> pb.StoredResponse:
        stored = await self._store.stored(request.step)
        memory = stored.full
        full = None if memory is None else pb.Memory(used=memory.used, most=memory.most)
        return pb.StoredResponse(
            indexes=stored.indexes, closed=stored.closed, notes=stored.notes, full=full
        )

    async def CloseStep(self, request: pb.CloseStepRequest, context: Any) -> pb.CloseStepResponse:
        await self._store.close_step(request.incarnation, request.step)
        return pb.CloseStepResponse()

    async def GetState(self, request: pb.GetStateRequest, context: Any) -> pb.GetStateResponse:
        return pb.GetStateResponse(fields=await self._store.get_state())

    async def PutState(self, request: pb.PutStateRequest, context: Any) -> pb.PutStateResponse:
        await self._store.put_state(request.incarnation, request.fields)
        return pb.PutStateResponse()


def register(store: Groups) -> Register:
    """For `runtime.grpc.serving`."""
    service = ExperienceService(store)
    arrays = {  # as bytes, see `wire`
        "AppendGroups": exchange_handler(
            service.AppendGroups, response_serializer=pb.AppendGroupsResponse.SerializeToString
        ),
        "Lease": exchange_handler(service.Lease, request_deserializer=pb.LeaseRequest.FromString),
    }
    name = pb.DESCRIPTOR.services_by_name["Experience"].full_name

    def add(server: grpc.aio.Server) -> None:
        pb_grpc.add_ExperienceServicer_to_server(service, server)
        server.add_registered_method_handlers(name, arrays)  # instead of the generated ones

    return add


def _outcome(said: bool | FlexMARLError) -> pb.AppendOutcome:
    if isinstance(said, FlexMARLError):
        return pb.AppendOutcome(status=said.code.value[0], detail=str(said))
    return pb.AppendOutcome(duplicate=not said)
