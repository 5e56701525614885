"""The life of turns in the engine's thread: queue, pause, abort, weight updates.

Backends only sample; the event loop's side is `scheduler`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence

from prometheus_client import Counter, Gauge

from flexmarl.rollout.engines.base import Backend, PauseMode, Turn, TurnResult
from flexmarl.runtime.errors import FlexMARLError

TOKENS = Counter("flexmarl_engine_generated_tokens_total", "Tokens sampled.")
TURNS = Counter("flexmarl_engine_turns_total", "Finished turns.", ["reason"])
RUNNING = Gauge("flexmarl_engine_running_turns", "Turns in the running batch.")
WAITING = Gauge("flexmarl_engine_waiting_turns", "Turns that wait for a place in it.")


class Call:
    """One generate call. The thread fills it, the event loop empties it."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns = turns
        self.unfinished = len(turns)
        # every put carries at least one turn, or the error that ends the call
        self.results: asyncio.Queue[list[TurnResult] | FlexMARLError] = asyncio.Queue(
            len(turns) + 1
        )


class Queue:
    """Turns in the order in which they start: those that go on with a cut one, then the others."""

    def __init__(self) -> None:
        self._resumed: deque[Turn] = deque()
        self._fresh: deque[Turn] = deque()

    def __len__(self) -> int:
        return len(self._resumed) + len(self._fresh)

    def extend(self, turns: Iterable[Turn]) -> None:
        for turn in turns:
            (self._resumed if turn.request.resumed else self._fresh).append(turn)

    def take(self, most: int) -> list[Turn]:
        """The first `most`, or all."""
        taken: list[Turn] = []
        for queue in (self._resumed, self._fresh):
            taken += [queue.popleft() for _ in range(min(most - len(taken), len(queue)))]
        return taken

    def discard(self, gone: Container[Turn]) -> None:
        self._resumed = deque(turn for turn in self._resumed if turn not in gone)
        self._fresh = deque(turn for turn in self._fresh if turn not in gone)


Deliver = Callable[[dict[Call, list[TurnResult]]], None]


class Scheduler:
    """The thread's side; no method may be called from another thread."""

    def __init__(self, backend: Backend | None, version: int, deliver: Deliver) -> None:
        self._backend = backend
        self._version = version
        self._deliver = deliver
        self._calls: dict[Turn, Call] = {}
        self._by_id: dict[str, Turn] = {}
        self._running: set[Turn] = set()
        self._waiting = Queue()
        self._held = Queue()  # came after a pause
        self._pause: PauseMode | None = None
        self._drained: asyncio.Future[None] | None = None
        self._loading = False
        self.outstanding_tokens = 0
        self.generated_tokens = 0

    @property
    def backend(self) -> Backend:
        """There is one as soon as weights were loaded."""
        if self._backend is None:
            raise RuntimeError("no backend before weights are loaded")
        return self._backend

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._held)

    @property
    def in_flight(self) -> Iterable[Call]:
        return set(self._calls.values())

    def work(self) -> float | None:
        """Admit and run one decode step; when to come again."""
        if self._loading or self._pause in (PauseMode.KEEP, PauseMode.ABORT):
            return None
        if not self._running and not self._waiting:
            return None
        if delay := self.backend.delay():
            return delay
        self._admit()
        sampled, finished = self.backend.step()
        self.generated_tokens += sampled
        self.outstanding_tokens -= sampled
        TOKENS.inc(sampled)
        if finished:
            self._finish(finished)
        return 0.0

    def _admit(self) -> None:
        room = self.backend.limits.max_concurrent_turns - self.backend.running
        if room <= 0 or not self._waiting:
            return
        turns = self._waiting.take(room)
        self._running.update(turns)
        self.backend.admit(turns)
        self._report()

    def submit(self, call: Call) -> None:
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

    def drop(self, call: Call) -> None:
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
        self._waiting.extend(self._held.take(len(self._held)))
        self._settle()

    def begin_load(self, same_policy: bool) -> None:
        """Nothing runs until `end_load`; what may not survive the update is aborted."""
        self._loading = True
        if self._pause is not PauseMode.KEEP or not same_policy:
            self._cut(list(self._calls))

    def use(self, backend: Backend | None) -> None:
        """Within a load of another policy: nothing is in flight. None: there is none for now."""
        self._backend = backend

    def end_load(self, version: int | None) -> str:
        """Go on at `version` (None: the update failed); the checksum of what is held now."""
        self._loading = False
        if version is None:
            self._cut(list(self._calls))
            return ""
        for turn in self._running:
            turn.borders.append((self._version, self.backend.progress(turn)))
        self._version = version
        return self.backend.checksum()

    def _cut(self, turns: Sequence[Turn]) -> None:
        if not turns:
            return
        gone = set(turns)
        running = [turn for turn in turns if turn in self._running]
        if running:
            self.backend.remove(running)
        self._waiting.discard(gone)
        self._held.discard(gone)
        self._finish(turns)

    def _finish(self, turns: Sequence[Turn]) -> None:
        """Take ended turns off the books and deliver them, one message per call."""
        delivery: dict[Call, list[TurnResult]] = {}
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
