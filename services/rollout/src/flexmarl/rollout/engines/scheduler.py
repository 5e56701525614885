"""`Engine` over a backend, for the event loop: checks requests, hands turns over, awaits them.

What happens to a turn is decided in the engine's thread: `turns`. Both sides call each other in
order, so a turn that was accepted for a version is there before that version is given up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Self

import structlog

from flexmarl.contracts.v1 import weights_pb2
from flexmarl.rollout.engines.base import (
    Backend,
    Loaded,
    PauseMode,
    Stats,
    TurnRequest,
    TurnResult,
)
from flexmarl.rollout.engines.models import Models, OneModel
from flexmarl.rollout.engines.requests import checked
from flexmarl.rollout.engines.thread import WorkThread
from flexmarl.rollout.engines.turns import Call, Scheduler
from flexmarl.runtime.errors import (
    FlexMARLError,
    InvalidRequestError,
    JobFailedError,
    StalePolicyError,
    UnavailableError,
)

MAX_WAITING = 1 << 16
"""Turns that may wait; more are refused."""

log = structlog.get_logger()


class EngineFailedError(FlexMARLError):
    """The engine broke down; the text is the error's own."""


class ScheduledEngine:
    """`Engine` over a backend. Use as `async with`, in the event loop that calls it.

    `loaded` names what the `backend` holds from the start; None: it waits for weights. `models` may
    give another one when weights are loaded; without, it stays.
    """

    def __init__(
        self,
        backend: Backend | None,
        loaded: Loaded | None = None,
        models: Models | None = None,
    ) -> None:
        if models is None:
            if backend is None:
                raise ValueError("neither a backend nor models")
            models = OneModel(backend)
        self._models = models
        self._loaded = loaded
        self._update = asyncio.Lock()
        self._calls = 0
        self._turns = 0
        version = loaded.version if loaded else 0
        self._scheduler = Scheduler(backend, version, self._deliver)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._thread = WorkThread("engine", self._scheduler.work, self._broke)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._thread.shutdown)
        for call in self._scheduler.in_flight:
            call.results.put_nowait(UnavailableError("the engine is stopping"))
        if self._failure.done():
            self._failure.exception()  # was reported to the callers
        else:
            self._failure.cancel()

    async def run(self) -> None:
        """Wait for the engine to break; raises what broke it."""
        await asyncio.shield(self._failure)

    async def generate(
        self,
        policy: str,
        version: int,
        turns: Sequence[TurnRequest],
        min_version: int | None = None,
    ) -> AsyncIterator[list[TurnResult]]:
        self._check_loaded(policy, version if min_version is None else min_version, version)
        call = Call(checked(turns, self._scheduler.backend.limits))
        if self._scheduler.waiting + len(turns) > MAX_WAITING:
            raise UnavailableError(f"{self._scheduler.waiting} turns wait already")
        self._calls += 1
        self._turns += len(turns)
        self._thread.submit(self._scheduler.submit, call)
        try:
            while call.unfinished:
                results = await call.results.get()
                if isinstance(results, FlexMARLError):
                    raise results
                call.unfinished -= len(results)
                yield results
        finally:
            if call.unfinished:
                self._thread.submit(self._scheduler.drop, call)

    def _check_loaded(self, policy: str, oldest: int, newest: int) -> None:
        if self._failure.done():
            raise EngineFailedError(str(self._failure.exception()))
        if oldest > newest:
            raise InvalidRequestError(f"min_version is {oldest}, above the version {newest}")
        loaded = self._loaded
        if loaded and loaded.policy == policy and oldest <= loaded.version <= newest:
            return
        wanted = f"v{newest}" if oldest == newest else f"v{oldest} to v{newest}"
        held = f"loaded is {loaded.policy} v{loaded.version}" if loaded else "no weights are loaded"
        raise StalePolicyError(f"asked for {policy} {wanted}, {held}")

    async def load_weights(self, policy: str, ref: weights_pb2.WeightsRef | None) -> Loaded:
        async with self._update:
            before = self._loaded
            if before and _is(before, policy, ref):
                return before  # asked again; turns in flight go on
            backend = self._models.held(policy, own=ref is None)
            self._loaded = None
            await self._in_thread(
                self._scheduler.begin_load, before is not None and before.policy == policy
            )
            version, seconds, transport = None, 0.0, ""
            try:
                if backend is None:
                    await self._in_thread(self._scheduler.use, None)  # room for the other model
                    started = time.monotonic()
                    backend = await self._models.build(policy)
                    await self._in_thread(self._scheduler.use, backend)
                    seconds = time.monotonic() - started
                if ref is None:
                    version = 0
                else:
                    more, transport = await backend.load(ref, self._thread)
                    version, seconds = ref.version, seconds + more
            finally:
                checksum = await self._in_thread(self._scheduler.end_load, version)
            self._loaded = Loaded(policy, version, checksum, seconds, transport)
            log.info(
                "weights loaded", policy=policy, version=version, seconds=seconds, via=transport
            )
            return self._loaded

    async def pause(self, mode: PauseMode) -> None:
        drained: asyncio.Future[None] = self._loop.create_future()
        await self._in_thread(self._scheduler.pause, mode, drained)
        await drained

    async def resume(self) -> None:
        await self._in_thread(self._scheduler.resume)

    async def abort(self, ids: Sequence[str]) -> None:
        await self._in_thread(self._scheduler.abort, ids)

    def stats(self) -> Stats:
        scheduler = self._scheduler
        return Stats(
            loaded=self._loaded,
            running=scheduler.running,
            waiting=scheduler.waiting,
            outstanding_tokens=scheduler.outstanding_tokens,
            generated_tokens=scheduler.generated_tokens,
            calls=self._calls,
            turns=self._turns,
        )

    async def _in_thread(self, call: Callable[..., str | None], *args: object) -> str:
        return await asyncio.wrap_future(self._thread.submit(call, *args)) or ""

    def _deliver(self, delivery: dict[Call, list[TurnResult]]) -> None:
        """From the thread: one wake-up of the event loop per decode step."""
        self._loop.call_soon_threadsafe(_put, delivery)

    def _broke(self, error: Exception) -> None:
        """From the thread, as its last act."""

        def tell() -> None:
            log.error("engine failed", exc_info=error)
            failure: FlexMARLError
            if isinstance(error, JobFailedError):  # a restart would not help
                failure = JobFailedError(str(error))
            else:
                failure = EngineFailedError(f"{type(error).__name__}: {error}")
            self._failure.set_exception(failure)
            for call in self._scheduler.in_flight:
                call.results.put_nowait(failure)

        self._loop.call_soon_threadsafe(tell)


def _is(loaded: Loaded, policy: str, ref: weights_pb2.WeightsRef | None) -> bool:
    if loaded.policy != policy:
        return False
    return ref is None or (ref.version, ref.checksum) == (loaded.version, loaded.checksum)


def _put(delivery: dict[Call, list[TurnResult]]) -> None:
    for call, results in delivery.items():
        call.results.put_nowait(results)
