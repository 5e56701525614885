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
from flexmarl.experience.clocks import Exchange, OtherClock
from flexmarl.experience.wire import Part, append_message, size_of
from flexmarl.runtime.errors import UnavailableError

Send = Callable[[Callable[[], bytes]], Awaitable[pb.AppendGroupsResponse]]
"""Of what makes the request, at the moment at which it is sent."""

REQUESTS = 6
"""Under way: the next is made while one is answered."""
REQUEST_BYTES = 1 << 20
"""Of one, unless its first group alone is larger."""
LARGE_REQUESTS = 16
"""Under way besides, each of a group that is larger."""
REQUEST_GROUPS = 12


@dataclass(eq=False, slots=True)
class _Offer:
    parts: Sequence[Part]
    size: int
    played: float
    answer: asyncio.Future[pb.AppendOutcome] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Offers:
    """Sends groups by `send`, whose errors, bugs too, are those of every group that it carried."""

    def __init__(self, send: Send, clock: OtherClock) -> None:
        self._send, self._clock = send, clock
        self._waiting: deque[_Offer] = deque()
        self._shared = 0
        """Requests under way that carry several, or might have."""
        self._large = asyncio.Semaphore(LARGE_REQUESTS)
        self._coming = False
        """The last of them has yet to take what it carries."""
        self._open: set[_Offer] = set()
        """All that are not answered yet."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def make(self, parts: Sequence[Part], played: float) -> pb.AppendOutcome:
        """What became of the group that `parts` are a message of, played at that moment."""
        offer = _Offer(parts, size_of(parts), played)
        self._open.add(offer)
        if offer.size > REQUEST_BYTES:
            self._start(self._alone(offer))
        else:
            self._waiting.append(offer)
            self._go_on()
        try:
            return await offer.answer
        finally:
            self._open.discard(offer)

    async def close(self) -> None:
        """UnavailableError for what is under way."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Of tasks that had yet to begin nothing else is heard.
        _fail(self._open, UnavailableError("the client of the experience service closed"))

    def _start(self, request: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(request)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _go_on(self) -> None:
        if self._waiting and not self._coming and self._shared < REQUESTS:
            self._coming = True
            self._shared += 1
            self._start(self._share())

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

    async def _alone(self, offer: _Offer) -> None:
        async with self._large:
            await self._carry([offer])

    async def _share(self) -> None:
        """Carries what was offered until the event loop's next turn, which is when it begins."""
        self._coming = False
        batch = self._next()
        self._go_on()
        try:
            if batch:
                await self._carry(batch)
        finally:
            self._shared -= 1
        self._go_on()

    async def _carry(self, batch: list[_Offer]) -> None:
        sent = 0.0

        def request() -> bytes:
            nonlocal sent
            played = [self._clock.theirs(each.played) for each in batch]
            message = append_message((each.parts for each in batch), played, self._clock.id)
            sent = time.perf_counter()
            return message

        try:
            answer = await self._send(request)
            says, got = answer.clock, time.perf_counter()
            self._clock.met(says.id, Exchange(sent, says.received, says.answered, got))
            for offer, outcome in zip(batch, answer.groups, strict=True):
                if not offer.answer.done():
                    offer.answer.set_result(outcome)
        except Exception as error:  # nobody awaits this task: those who wait must learn of it
            _fail(batch, error)


def _fail(offers: Iterable[_Offer], error: Exception) -> None:
    for offer in offers:
        if not offer.answer.done():
            offer.answer.set_exception(error)
