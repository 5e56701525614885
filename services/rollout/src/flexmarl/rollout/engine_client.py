"""One inference engine as the worker sees it: turns pending at one moment travel in one call.

A moment is a few rounds of the event loop. Each turn is answered as soon as the engine finishes it;
one whose caller was cancelled is aborted there. Which engine takes a turn, and what is tried again,
is decided in `flexmarl.rollout.policies`.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

import grpc
import grpc.aio
import structlog
from prometheus_client import Counter, Histogram

from flexmarl.contracts.v1 import engine_pb2, engine_pb2_grpc
from flexmarl.runtime import grpc as rpc
from flexmarl.runtime.errors import (
    FlexMARLError,
    InvalidRequestError,
    StalePolicyError,
    UnauthenticatedError,
    UnavailableError,
)

CALLS = Counter("flexmarl_rollout_generate_calls_total", "Generate calls sent to engines.")
TURNS_PER_CALL = Histogram(
    "flexmarl_rollout_turns_per_call",
    "Turns that travelled in one Generate call.",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
)

QUIET_ROUNDS = 12
"""Groups that arrive together reach their first turns within a few rounds of each other."""
LONGEST_GATHERING_SECONDS = 0.01
SHORT_CALL_SECONDS = 5.0
log = structlog.get_logger()


class Wanted(NamedTuple):
    """What a call asks to be sampled from: a policy, and the oldest and newest version that do."""

    policy: str
    oldest: int
    newest: int


class EngineClient:
    """Calls one engine; `spawn` runs a call beside its callers and keeps hold of it."""

    def __init__(
        self,
        address: str,
        token: str,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        call_seconds: float,
    ) -> None:
        self.address = address
        self._channel = rpc.channel(address, token)
        self._stub = engine_pb2_grpc.EngineStub(self._channel)
        self._spawn = spawn
        self._call_seconds = call_seconds
        self._prefix = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[engine_pb2.TurnResult]] = {}
        self._pending: dict[Wanted, list[engine_pb2.TurnRequest]] = {}
        self._sent: set[str] = set()
        self._aborts: list[str] = []
        self._flushing = False
        self._quiet = 0
        self._own = 0
        self._prompts = 0
        self._others = 0

    @property
    def outstanding(self) -> int:
        """An upper bound of the tokens this engine has yet to make, other workers' included."""
        return self._own + self._others

    @property
    def load(self) -> int:
        """What it has yet to make, and the prompts that it holds for turns of this worker."""
        return self.outstanding + self._prompts

    @property
    def idle(self) -> bool:
        return not self._waiting

    async def close(self) -> None:
        await self._channel.close()

    async def generate(self, wanted: Wanted, turn: engine_pb2.TurnRequest) -> engine_pb2.TurnResult:
        """The engine's answer to `turn`, whose id is set here.

        StalePolicyError: it holds another version. InvalidRequestError: this turn can never be
        played. UnavailableError: try again.
        """
        turn.id = f"{self._prefix}-{next(self._numbers)}"
        loop = asyncio.get_running_loop()
        future: asyncio.Future[engine_pb2.TurnResult] = loop.create_future()
        self._waiting[turn.id] = future
        self._pending.setdefault(wanted, []).append(turn)
        prompt_tokens = len(turn.prompt_ids) // 4
        self._own += turn.sampling.max_tokens
        self._prompts += prompt_tokens
        self._flush_soon()
        try:
            return await future
        except asyncio.CancelledError:
            if turn.id in self._sent:
                self._aborts.append(turn.id)
                self._flush_soon()
            raise
        finally:
            self._own -= turn.sampling.max_tokens
            self._prompts -= prompt_tokens
            self._waiting.pop(turn.id, None)
            self._sent.discard(turn.id)

    async def stats(self) -> engine_pb2.StatsResponse:
        """UnavailableError when the engine does not answer."""
        try:
            stats: engine_pb2.StatsResponse = await self._stub.Stats(
                engine_pb2.StatsRequest(), timeout=SHORT_CALL_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            raise from_status(error, self.address) from error
        return stats

    def _flush_soon(self) -> None:
        """Flush once the event loop has gone round without a further turn, or after the bound."""
        self._quiet = 0
        if not self._flushing:
            self._flushing = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._flush_when_quiet, loop, loop.time() + LONGEST_GATHERING_SECONDS)

    def _flush_when_quiet(self, loop: asyncio.AbstractEventLoop, latest: float) -> None:
        if self._quiet < QUIET_ROUNDS and loop.time() < latest:
            self._quiet += 1
            loop.call_soon(self._flush_when_quiet, loop, latest)
            return
        self._flushing = False
        pending, self._pending = self._pending, {}
        for wanted, turns in pending.items():
            awaited = [turn for turn in turns if turn.id in self._waiting]
            if awaited:
                self._send(wanted, awaited)
        if self._aborts:
            ids, self._aborts = self._aborts, []
            self._spawn(self._abort(ids))

    def _send(self, wanted: Wanted, turns: list[engine_pb2.TurnRequest]) -> None:
        self._sent.update(turn.id for turn in turns)
        CALLS.inc()
        TURNS_PER_CALL.observe(len(turns))
        self._spawn(self._call(wanted, turns))

    async def _call(self, wanted: Wanted, turns: list[engine_pb2.TurnRequest]) -> None:
        policy, oldest, newest = wanted
        request = engine_pb2.GenerateRequest(
            policy=policy,
            version=newest,
            min_version=None if oldest == newest else oldest,
            turns=turns,
        )
        error: FlexMARLError = UnavailableError(f"engine {self.address}: left turns unanswered")
        try:
            async for response in self._stub.Generate(request, timeout=self._call_seconds):
                for result in response.turns:
                    future = self._waiting.get(result.id)
                    if future is not None and not future.done():
                        future.set_result(result)
                self._others = max(0, response.outstanding_tokens - self._own)
        except grpc.aio.AioRpcError as failure:
            error = from_status(failure, self.address)
        finally:
            self._settle(wanted, turns, error)

    def _settle(
        self, wanted: Wanted, turns: list[engine_pb2.TurnRequest], error: FlexMARLError
    ) -> None:
        """Give `error` to the turns that the call left open."""
        left = [turn for turn in turns if self._is_open(turn.id)]
        if isinstance(error, InvalidRequestError) and len(turns) > 1:
            # One turn spoiled the call: each goes alone, so that only that one fails.
            for turn in left:
                self._send(wanted, [turn])
            return
        for turn in left:
            self._waiting[turn.id].set_exception(error)

    def _is_open(self, turn_id: str) -> bool:
        future = self._waiting.get(turn_id)
        return future is not None and not future.done()

    async def _abort(self, ids: Iterable[str]) -> None:
        try:
            await self._stub.Abort(engine_pb2.AbortRequest(ids=ids), timeout=SHORT_CALL_SECONDS)
        except grpc.aio.AioRpcError as error:  # nobody waits for these turns any more
            log.warning("turns not aborted", engine=self.address, code=error.code().name)


def from_status(error: grpc.aio.AioRpcError, address: str) -> FlexMARLError:
    """Our error for a status of an engine; whatever may pass with a restart is Unavailable."""
    text = f"engine {address}: {error.details() or error.code().name}"
    match error.code():
        case grpc.StatusCode.FAILED_PRECONDITION:
            return StalePolicyError(text)
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidRequestError(text)
        case grpc.StatusCode.UNAUTHENTICATED:
            return UnauthenticatedError(text)
        case _:
            return UnavailableError(f"{text} ({error.code().name})")
