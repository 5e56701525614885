"""Groups that are to be stored at the same moment travel together.

A small group costs its way, not its bytes: the calls, the turns of event loops, the server's round
trips. What comes while a few requests are under way goes with the next one, as a database commits.
Nothing bounds what waits but that each caller waits for its own group.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.wire import Part, append_message, size_of
from flexmarl.runtime.errors import UnavailableError

Send = Callable[[Callable[[], bytes]], Awaitable[pb.AppendGroupsResponse]]
"""Of what makes the request, at the moment at which it is sent."""

REQUESTS = 2
"""Under way: the next is made while one is answered."""
REQUEST_BYTES = 1 << 20
"""Of one, unless its first group alone is larger."""
REQUEST_GROUPS = 64


@dataclass(slots=True)
class _Offer:
    parts: Sequence[Part]
    size: int
    played: float
    answer: asyncio.Future[pb.AppendOutcome] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Offers:
    """Sends groups by `send`, whose errors, bugs too, are those of every group that it carried."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[_Offer] = deque()
        self._shared = 0
        """Requests under way that carry several, or might have."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._transit = 0.0
        """Seconds that the last request was on its way, there and back."""

    async def make(self, parts: Sequence[Part], played: float) -> pb.AppendOutcome:
        """What became of the group that `parts` are a message of, played at that moment."""
        offer = _Offer(parts, size_of(parts), played)
        if offer.size > REQUEST_BYTES:
            self._start(self._carry([offer]))
        else:
            self._waiting.append(offer)
            self._go_on()
        return await offer.answer

    async def close(self) -> None:
        """UnavailableError for what is under way."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        _fail(self._waiting, UnavailableError("the client of the experience service was closed"))

    def _start(self, request: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(request)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _go_on(self) -> None:
        while self._waiting and self._shared < REQUESTS:
            if batch := self._next():
                self._shared += 1
                self._start(self._share(batch))

    def _next(self) -> list[_Offer]:
        """Those that go together; nobody waits any more for those that were given up."""
        batch, size = list[_Offer](), 0
        while self._waiting and len(batch) < REQUEST_GROUPS:
            if batch and size + self._waiting[0].size > REQUEST_BYTES:
                break
            offer = self._waiting.popleft()
            if not offer.answer.done():
                batch.append(offer)
                size += offer.size
        return batch

    async def _share(self, batch: list[_Offer]) -> None:
        try:
            await self._carry(batch)
        finally:
            self._shared -= 1
        self._go_on()

    async def _carry(self, batch: list[_Offer]) -> None:
        sent = 0.0

        def request() -> bytes:
            nonlocal sent
            sent = time.perf_counter()
            # How long this one will be on its way nobody can tell: as long as the one before.
            arrives = sent + self._transit
            return append_message(
                (each.parts for each in batch), (arrives - each.played for each in batch)
            )

        try:
            answer = await self._send(request)
            self._transit = max(0.0, time.perf_counter() - sent - answer.seconds)
            for offer, outcome in zip(batch, answer.groups, strict=True):
                if not offer.answer.done():
                    offer.answer.set_result(outcome)
        except asyncio.CancelledError:
            _fail(batch, UnavailableError("the client of the experience service was closed"))
            raise
        except Exception as error:  # nobody awaits this task: those who wait must learn of it
            _fail(batch, error)


def _fail(offers: Iterable[_Offer], error: Exception) -> None:
    for offer in offers:
        if not offer.answer.done():
            offer.answer.set_exception(error)
