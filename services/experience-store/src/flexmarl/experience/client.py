"""What workers, trainers and the orchestrator call: typed, with deadlines, patient over outages.

A call that fails because the service or its store is away, or full, is repeated: every call may be.
An append that was stored although its answer got lost comes back as a duplicate.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
import stamina
import structlog
from google.protobuf.message import Message

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.contracts.v1 import experience_pb2_grpc as pb_grpc
from flexmarl.experience.clocks import Exchange, OtherClock
from flexmarl.experience.offers import Offers
from flexmarl.experience.samples import (
    GroupId,
    LeasedGroup,
    PolicySamples,
    group_to_wire,
    leased_from_wire,
)
from flexmarl.experience.turns import Turns
from flexmarl.experience.wire import Part, read_lease, size_of
from flexmarl.runtime.errors import (
    FencedError,
    FlexMARLError,
    FullError,
    InvalidRequestError,
    StalePolicyError,
    UnauthenticatedError,
    UnavailableError,
)
from flexmarl.runtime.exchanges import Exchanges
from flexmarl.runtime.grpc import TOKEN_KEY, channel

Request = TypeVar("Request")
Response = TypeVar("Response")

SERVICE = pb.DESCRIPTOR.services_by_name["Experience"].full_name
MAX_GROUP_BYTES = 255 << 20
"""What fits into one message of `runtime.grpc`."""
_ERRORS: dict[grpc.StatusCode, type[FlexMARLError]] = {
    error.code: error
    for error in (
        FencedError,
        FullError,
        InvalidRequestError,
        StalePolicyError,
        UnauthenticatedError,
        UnavailableError,
    )
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_FULL = FullError.code.value[0]
_AWAY_STATUS = UnavailableError.code.value[0]
FULL_SECONDS = 0.05, 1.0
"""First and longest wait for memory."""
log = structlog.get_logger()
_AWAY = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}


@dataclass(frozen=True, slots=True)
class Lease:
    groups: tuple[LeasedGroup, ...]
    """In order of arrival; the sequences' arrays are read-only."""
    cursor: str
    """For the next lease of this step."""
    waited: float
    """Seconds of the call until there was something to be had, or to its end."""
    seconds: float
    """The others: what the store took."""
    played: tuple[float, ...]
    """When each group was, and had become samples, by `time.perf_counter`; where the service does
    not know, when it found it."""


@dataclass(frozen=True, slots=True)
class StoredStep:
    indexes: frozenset[int]
    """That every policy has or had; empty for a closed step."""
    closed: bool
    notes: Mapping[int, bytes]
    """Of those that came with one."""
    full: pb.Memory | None
    """While groups wait for room, of whichever step."""


class ExperienceClient:
    """The experience service at `address`; one channel, to be closed or used as `async with`.

    `timeout` seconds are the deadline of one attempt, `patience` how long attempts go on while
    the service is away. UnavailableError when that is over; FencedError when a newer
    incarnation or epoch has taken over: the caller must stop.
    """

    def __init__(
        self, address: str, token: str = "", *, timeout: float = 30.0, patience: float = 120.0
    ) -> None:
        self._address, self._timeout, self._patience = address, timeout, patience
        # Not by the channel's interceptors: they cost more than a small group's own way.
        self._metadata = ((TOKEN_KEY, f"Bearer {token}"),) if token else None
        self._channel = channel(address)
        self._stub: pb_grpc.ExperienceAsyncStub = pb_grpc.ExperienceStub(self._channel)
        # Those that carry arrays: `wire` reads and writes them.
        append: Exchanges[bytes, pb.AppendGroupsResponse] = Exchanges(
            self._channel.stream_stream(
                f"/{SERVICE}/AppendGroups",
                response_deserializer=pb.AppendGroupsResponse.FromString,
            )
        )
        self._clock = OtherClock()
        self._offers = Offers(partial(self._call, append), self._clock)
        self._turns = Turns()
        self._lease: Exchanges[Message, bytes] = Exchanges(
            self._channel.stream_stream(
                f"/{SERVICE}/Lease",
                request_serializer=pb.LeaseRequest.SerializeToString,
                response_deserializer=bytes,
            )
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._offers.close()
        await self._channel.close()

    async def take_incarnation(self) -> int:
        """A new incarnation."""
        request = pb.TakeIncarnationRequest()
        return int((await self._call(self._stub.TakeIncarnation, request)).incarnation)

    async def roll_back(self, incarnation: int, step: int) -> None:
        """That step and later ones are forgotten."""
        request = pb.RollBackRequest(incarnation=incarnation, step=step)
        await self._call(self._stub.RollBack, request)

    async def take_epoch(self, policy: str, incarnation: int) -> int:
        """A new epoch of the policy."""
        request = pb.TakeEpochRequest(policy=policy, incarnation=incarnation)
        return int((await self._call(self._stub.TakeEpoch, request)).epoch)

    async def check_epoch(self, policy: str, epoch: int) -> None:
        """FencedError: a newer one was taken."""
        request = pb.CheckEpochRequest(policy=policy, epoch=epoch)
        await self._call(self._stub.CheckEpoch, request)

    async def append_group(
        self,
        group: GroupId,
        task_id: str,
        samples: Iterable[PolicySamples],
        note: bytes = b"",
        *,
        played: float | None = None,
    ) -> bool:
        """Store a group: `samples` of every trained policy, once, empty where one took no turn.

        `note` comes back from `stored`. `played`: when, by `time.perf_counter`; else now. False: it
        was stored or trained before. Waits for as long as the store is full, which ends with the
        caller's own deadline. InvalidRequestError and StalePolicyError name the sequence.
        """
        played = time.perf_counter() if played is None else played
        parts = group_to_wire(group, task_id, samples, note)  # once, however often it is sent
        if (size := size_of(parts)) > MAX_GROUP_BYTES:
            raise InvalidRequestError(
                f"group {group} has {size >> 20} MiB; {MAX_GROUP_BYTES >> 20} MiB can be stored"
            )
        outcome = await self._offered(parts, played)
        if outcome.status == _FULL:
            log.warning("store is full, waiting for trainers", service=self._address)
            async with self._turns.of(group.step):
                pause, longest = FULL_SECONDS
                while (outcome := await self._offered(parts, played)).status == _FULL:
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # not all clients at once
                    pause = min(2 * pause, longest)
        if outcome.status:
            raise self._translated(_CODES[outcome.status], outcome.detail)
        return not outcome.duplicate

    async def _offered(self, parts: Sequence[Part], played: float) -> pb.AppendOutcome:
        """What became of a group; once more while the service cannot say so."""
        until = time.monotonic() + self._patience
        while (outcome := await self._offers.make(parts, played)).status == _AWAY_STATUS:
            if time.monotonic() >= until:
                break
            await asyncio.sleep(random.uniform(0.05, 0.2))
        return outcome

    async def lease(
        self,
        policy: str,
        epoch: int,
        step: int,
        cursor: str = "",
        *,
        max_groups: int = 0,
        wait: float = 10.0,
        indexes: Iterable[int] = (),
        lacking: int = 0,
    ) -> Lease:
        """Groups of the step behind the cursor, at most `max_groups` (0: what one answer carries),
        of these `indexes` alone if any are given.

        Waits up to `wait` seconds for the first, a moment for more unless all that are `lacking`
        are there; empty when none came. An index comes again only
        after the server lost its memory: fold by index, once.
        """
        request = pb.LeaseRequest(
            policy=policy,
            epoch=epoch,
            step=step,
            cursor=cursor,
            max_groups=max_groups,
            wait_ms=math.ceil(wait * 1000),
            indexes=indexes,
            lacking=lacking,
        )
        sent = started = time.perf_counter()

        def at_each_attempt() -> pb.LeaseRequest:
            nonlocal sent
            sent = time.perf_counter()
            return request

        raw = await self._call(self._lease, at_each_attempt, extra=wait)
        got = time.perf_counter()
        groups, rest = read_lease(raw)
        says = rest.clock
        self._clock.met(says.id, Exchange(sent, says.received, says.answered, got))
        leased = tuple(map(leased_from_wire, groups))
        seconds = time.perf_counter() - started - rest.waited
        played = tuple(map(self._clock.ours, rest.played))
        return Lease(leased, rest.cursor, rest.waited, seconds, played)

    async def commit(self, policy: str, epoch: int, step: int, *, keep: int = 0) -> int:
        """Acknowledge the policy's groups of the step; how many were deleted.

        The groups of the last `keep` steps, this one included, can still be leased.
        """
        request = pb.CommitRequest(policy=policy, epoch=epoch, step=step, keep=keep)
        return int((await self._call(self._stub.Commit, request)).deleted)

    async def stored(self, step: int) -> StoredStep:
        """What need not be played (again). Ask again while a step lasts: an entry may get lost."""
        response = await self._call(self._stub.Stored, pb.StoredRequest(step=step))
        full = response.full if response.HasField("full") else None
        return StoredStep(frozenset(response.indexes), response.closed, dict(response.notes), full)

    async def close_step(self, incarnation: int, step: int) -> None:
        """The step and all before it are done."""
        request = pb.CloseStepRequest(incarnation=incarnation, step=step)
        await self._call(self._stub.CloseStep, request)

    async def get_state(self) -> dict[str, str]:
        return dict((await self._call(self._stub.GetState, pb.GetStateRequest())).fields)

    async def put_state(self, incarnation: int, fields: Mapping[str, str]) -> None:
        """Set these fields of the state; others keep their values."""
        request = pb.PutStateRequest(incarnation=incarnation, fields=fields)
        await self._call(self._stub.PutState, request)

    async def _call(
        self,
        method: Callable[..., Awaitable[Response]],
        request: Any,
        *,
        extra: float = 0.0,
    ) -> Response:
        """`request`, or what it returns at each attempt."""

        async def once() -> Response:
            sent = request() if callable(request) else request
            try:
                return await method(sent, timeout=self._timeout + extra, metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                raise self._translated(error.code(), error.details()) from error

        async for attempt in stamina.retry_context(
            on=_away,
            attempts=None,
            timeout=self._patience,
            wait_initial=0.05,
            wait_max=1.0,
            wait_jitter=0.2,
        ):
            with attempt:
                return await once()
        raise AssertionError

    def _translated(self, code: grpc.StatusCode, detail: str | None) -> FlexMARLError:
        text = f"experience service {self._address}: {detail or code.name}"
        if code in _AWAY:
            return UnavailableError(f"{text} ({code.name})")
        if kind := _ERRORS.get(code):
            return kind(text)
        return FlexMARLError(f"{text} ({code.name})")


def _away(error: Exception) -> bool:
    return isinstance(error, UnavailableError) and not isinstance(error, FullError)
