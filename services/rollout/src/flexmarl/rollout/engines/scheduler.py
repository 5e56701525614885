"""The life of turns in an engine: queue, pause, abort, weight updates. Backends only sample.

The event loop's side (`ScheduledEngine`) checks requests, hands them over and awaits; the thread's
side (`_Scheduler`) owns every turn and the backend. Each side calls the other in order, so a turn
that was accepted for a version is in the thread before that version is given up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Self

import structlog
from prometheus_client import Counter, Gauge

from flexmarl.contracts.v1 import weights_pb2
from flexmarl.rollout.engines.base import (
    Backend,
    Loaded,
    PauseMode,
    Stats,
    Turn,
    TurnRequest,
    TurnResult,
)
from flexmarl.rollout.engines.requests import checked
from flexmarl.rollout.engines.thread import WorkThread
from flexmarl.runtime.errors import FlexMARLError, StalePolicyError, UnavailableError

TOKENS = Counter("flexmarl_engine_generated_tokens_total", "Tokens sampled.")
TURNS = Counter("flexmarl_engine_turns_total", "Finished turns.", ["reason"])
RUNNING = Gauge("flexmarl_engine_running_turns", "Turns in the running batch.")
WAITING = Gauge("flexmarl_engine_waiting_turns", "Turns that wait for a place in it.")
MAX_WAITING = 1 << 16
"""Turns that may wait; more are refused."""

log = structlog.get_logger()


class EngineFailedError(FlexMARLError):
    """The engine broke down; the text is the error's own."""


class _Call:
    """One generate call. The thread fills it, the event loop empties it."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns = turns
        self.unfinished = len(turns)
        # every put carries at least one turn, or the error that ends the call
        self.results: asyncio.Queue[list[TurnResult] | FlexMARLError] = asyncio.Queue(
            len(turns) + 1
        )


Deliver = Callable[[dict[_Call, list[TurnResult]]], None]


class _Scheduler:
    """The thread's side; no method may be called from another thread."""

    def __init__(self, backend: Backend, version: int, deliver: Deliver) -> None:
        self._backend = backend
        self._version = version
        self._deliver = deliver
        self._calls: dict[Turn, _Call] = {}
        self._by_id: dict[str, Turn] = {}
        self._running: set[Turn] = set()
        self._waiting: deque[Turn] = deque()
        self._held: list[Turn] = []  # came after a pause
        self._pause: PauseMode | None = None
        self._drained: asyncio.Future[None] | None = None
        self._loading = False
        self.outstanding_tokens = 0
        self.generated_tokens = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._held)

    @property
    def in_flight(self) -> Iterable[_Call]:
        return set(self._calls.values())

    def work(self) -> float | None:
        """Admit and run one decode step; when to come again."""
        if self._loading or self._pause in (PauseMode.KEEP, PauseMode.ABORT):
            return None
        if not self._running and not self._waiting:
            return None
        if delay := self._backend.delay():
            return delay
        self._admit()
        sampled, finished = self._backend.step()
        self.generated_tokens += sampled
        self.outstanding_tokens -= sampled
        TOKENS.inc(sampled)
        if finished:
            self._finish(finished)
        return 0.0

    def _admit(self) -> None:
        room = self._backend.limits.max_concurrent_turns - self._backend.running
        if room <= 0 or not self._waiting:
            return
        turns = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        self._running.update(turns)
        self._backend.admit(turns)
        self._report()

    def submit(self, call: _Call) -> None:
        for turn in call.turns:
            older = self._by_id.get(turn.request.id)
            if older is not None:  # a caller that lost its connection asks again
                self._cut([older])
            self._by_id[turn.request.id] = turn
            self._calls[turn] = call
            self.outstanding_tokens += turn.max_tokens
        (self._held if self._pause else self._waiting).extend(call.turns)
        self._report()

    def abort(self, ids: Iterable[str]) -> None:
        self._cut([self._by_id[id_] for id_ in ids if id_ in self._by_id])

    def drop(self, call: _Call) -> None:
        """The caller has gone."""
        self._cut([turn for turn in call.turns if turn in self._calls])

    def pause(self, mode: PauseMode, drained: asyncio.Future[None]) -> None:
        """Set `drained` (in its loop) once nothing moves."""
        if self._drained is not None:
            _set(self._drained)
        self._pause, self._drained = mode, drained
        if mode is PauseMode.ABORT:
            self._cut(list(self._calls))
        self._settle()

    def resume(self) -> None:
        self._pause = None
        self._waiting.extend(self._held)
        self._held.clear()
        self._settle()

    def begin_load(self, same_policy: bool) -> None:
        """Nothing runs until `end_load`; what may not survive the update is aborted."""
        self._loading = True
        if self._pause is not PauseMode.KEEP or not same_policy:
            self._cut(list(self._calls))

    def end_load(self, version: int | None) -> str:
        """Go on at `version` (None: the update failed); the checksum of what is held now."""
        self._loading = False
        if version is None:
            self._cut(list(self._calls))
            return ""
        for turn in self._running:
            turn.borders.append((self._version, self._backend.progress(turn)))
        self._version = version
        return self._backend.checksum()

    def _cut(self, turns: Sequence[Turn]) -> None:
        if not turns:
            return
        gone = set(turns)
        running = [turn for turn in turns if turn in self._running]
        if running:
            self._backend.remove(running)
        self._waiting = deque(turn for turn in self._waiting if turn not in gone)
        self._held = [turn for turn in self._held if turn not in gone]
        self._finish(turns)

    def _finish(self, turns: Sequence[Turn]) -> None:
        """Take ended turns off the books and deliver them, one message per call."""
        delivery: dict[_Call, list[TurnResult]] = {}
        for turn in turns:
            self._running.discard(turn)
            if self._by_id.get(turn.request.id) is turn:
                del self._by_id[turn.request.id]
            self.outstanding_tokens -= turn.max_tokens - len(turn.token_ids)
            delivery.setdefault(self._calls.pop(turn), []).append(turn.result(self._version))
            TURNS.labels(turn.finish_reason).inc()
        self._deliver(delivery)
        self._report()
        self._settle()

    def _settle(self) -> None:
        """Answer a pause that has reached what it waits for."""
        moving = self._running or self._waiting
        if self._drained is not None and not (self._pause is PauseMode.WAIT and moving):
            _set(self._drained)
            self._drained = None

    def _report(self) -> None:
        RUNNING.set(self.running)
        WAITING.set(self.waiting)


def _set(future: asyncio.Future[None]) -> None:
    def settle() -> None:
        if not future.done():
            future.set_result(None)

    future.get_loop().call_soon_threadsafe(settle)


class ScheduledEngine:
    """`Engine` over a backend. Use as `async with`, in the event loop that calls it.

    `loaded` names what the backend holds from the start; None: it waits for weights.
    """

    def __init__(self, backend: Backend, loaded: Loaded | None = None) -> None:
        self._backend = backend
        self._loaded = loaded
        self._update = asyncio.Lock()
        self._calls = 0
        self._turns = 0
        version = loaded.version if loaded else 0
        self._scheduler = _Scheduler(backend, version, self._deliver)

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
        self, policy: str, version: int, turns: Sequence[TurnRequest]
    ) -> AsyncIterator[list[TurnResult]]:
        self._check_loaded(policy, version)
        call = _Call(checked(turns, self._backend.limits))
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

    def _check_loaded(self, policy: str, version: int) -> None:
        if self._failure.done():
            raise EngineFailedError(str(self._failure.exception()))
        if self._loaded is None:
            raise StalePolicyError(f"asked for {policy} v{version}, no weights are loaded")
        if (policy, version) != (self._loaded.policy, self._loaded.version):
            raise StalePolicyError(
                f"asked for {policy} v{version}, loaded is "
                f"{self._loaded.policy} v{self._loaded.version}"
            )

    async def load_weights(self, policy: str, ref: weights_pb2.WeightsRef) -> Loaded:
        async with self._update:
            before, wanted = self._loaded, (policy, ref.version, ref.checksum)
            if before and wanted == (before.policy, before.version, before.checksum):
                return before  # asked again; turns in flight go on
            self._loaded = None
            await self._in_thread(
                self._scheduler.begin_load, before is not None and before.policy == policy
            )
            version = None
            try:
                seconds, transport = await self._backend.load(ref, self._thread)
                version = ref.version
            finally:
                checksum = await self._in_thread(self._scheduler.end_load, version)
            self._loaded = Loaded(policy, ref.version, checksum, seconds, transport)
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

    def _deliver(self, delivery: dict[_Call, list[TurnResult]]) -> None:
        """From the thread: one wake-up of the event loop per decode step."""
        self._loop.call_soon_threadsafe(_put, delivery)

    def _broke(self, error: Exception) -> None:
        """From the thread, as its last act."""

        def tell() -> None:
            log.error("engine failed", exc_info=error)
            failure = EngineFailedError(f"{type(error).__name__}: {error}")
            self._failure.set_exception(failure)
            for call in self._scheduler.in_flight:
                call.results.put_nowait(failure)

        self._loop.call_soon_threadsafe(tell)


def _put(delivery: dict[_Call, list[TurnResult]]) -> None:
    for call, results in delivery.items():
        call.results.put_nowait(results)
