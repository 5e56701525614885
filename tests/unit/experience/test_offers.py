"""Groups that come at the same moment go together, and none depends on another."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.clocks import OtherClock
from flexmarl.experience.offers import (
    LARGE_REQUESTS,
    REQUEST_BYTES,
    REQUEST_GROUPS,
    REQUESTS,
    Offers,
)
from flexmarl.experience.wire import read_append
from flexmarl.runtime.errors import UnavailableError

CLOCK, AHEAD = 7, 1e6
"""Of the service."""


class Service:
    """Answers when it is let: a group of even content is a duplicate."""

    def __init__(self) -> None:
        self.requests: list[list[bytes]] = []
        self.played: list[list[float]] = []
        self.clocks: list[int] = []
        self.came = asyncio.Semaphore(0)
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def take(self, request: Callable[[], bytes]) -> pb.AppendGroupsResponse:
        received = self.now()
        sent, rest = read_append(request())
        groups = [bytes(group) for group in sent]
        self.requests.append(groups)
        self.played.append(list(rest.played))
        self.clocks.append(rest.clock)
        self.came.release()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        outcomes = [pb.AppendOutcome(duplicate=group[0] % 2 == 0) for group in groups]
        clock = pb.Clock(id=CLOCK, received=received, answered=self.now())
        return pb.AppendGroupsResponse(groups=outcomes, clock=clock)

    def now(self) -> float:
        return time.perf_counter() + AHEAD


@asynccontextmanager
async def offering() -> AsyncIterator[tuple[Service, Offers]]:
    service = Service()
    offers = Offers(service.take, OtherClock())
    try:
        yield service, offers
    finally:
        await offers.close()


async def began(service: Service, requests: int) -> None:
    """So many more requests have come."""
    async with asyncio.timeout(60):
        for _ in range(requests):
            await service.came.acquire()


async def occupy(service: Service, offers: Offers) -> list[asyncio.Task[pb.AppendOutcome]]:
    """As many requests as there may be, each of a group."""
    tasks = []
    for _ in range(REQUESTS):
        tasks.append(asyncio.create_task(offers.make([b"\1"], 0.0)))
        await began(service, 1)
    return tasks


async def test_what_is_offered_in_one_turn_of_the_loop_goes_together() -> None:
    async with offering() as (service, offers), asyncio.TaskGroup() as tasks:
        service.gate.set()
        for number in range(3):
            tasks.create_task(offers.make([bytes([number])], 0.0))
    assert service.requests == [[b"\0", b"\1", b"\2"]]


async def test_what_comes_meanwhile_goes_with_the_next_request() -> None:
    async with offering() as (service, offers), asyncio.TaskGroup() as tasks:
        first = await occupy(service, offers)
        rest = [tasks.create_task(offers.make([bytes([n]), b"more"], 0.0)) for n in range(10, 20)]
        await asyncio.sleep(0)
        assert service.requests == [[b"\1"]] * REQUESTS
        service.gate.set()
        outcomes = [(await each).duplicate for each in (*first, *rest)]
    assert outcomes == [False] * REQUESTS + [n % 2 == 0 for n in range(10, 20)]
    assert service.requests[REQUESTS:] == [[bytes([n]) + b"more" for n in range(10, 20)]]


async def test_a_request_carries_no_more_than_it_may() -> None:
    share = REQUEST_BYTES // 4
    async with offering() as (service, offers), asyncio.TaskGroup() as tasks:
        await occupy(service, offers)
        for size in [share] * 6 + [1] * (REQUEST_GROUPS + 1):
            tasks.create_task(offers.make([bytes(size)], 0.0))
        service.gate.set()
    assert [len(each) for each in service.requests[REQUESTS:]] == [4, REQUEST_GROUPS, 3]
    assert max(sum(map(len, each)) for each in service.requests) <= REQUEST_BYTES


async def test_a_large_group_waits_for_none() -> None:
    async with offering() as (service, offers), asyncio.TaskGroup() as tasks:
        await occupy(service, offers)
        tasks.create_task(offers.make([b"\1" * (REQUEST_BYTES + 1)], 0.0))
        await began(service, 1)
        service.gate.set()


async def test_what_nobody_waits_for_any_more_is_not_sent() -> None:
    async with offering() as (service, offers), asyncio.TaskGroup() as tasks:
        await occupy(service, offers)
        given_up = tasks.create_task(offers.make([b"\3"], 0.0))
        await asyncio.sleep(0)
        given_up.cancel()
        kept = tasks.create_task(offers.make([b"\5"], 0.0))
        service.gate.set()
        await kept
    assert service.requests[REQUESTS:] == [[b"\5"]]


async def test_an_error_of_a_request_is_that_of_its_groups_and_of_no_later_ones() -> None:
    async with offering() as (service, offers):
        service.error = UnavailableError("away")
        service.gate.set()
        answers = await asyncio.gather(
            *(offers.make([b"\1"], 0.0) for _ in range(3)), return_exceptions=True
        )
        assert [str(each) for each in answers] == ["away"] * 3
        service.error = None
        assert not (await offers.make([b"\1"], 0.0)).duplicate


async def test_of_large_groups_a_few_are_under_way_at_a_time() -> None:
    async with offering() as (service, offers), asyncio.TaskGroup() as tasks:
        for _ in range(LARGE_REQUESTS + 1):
            tasks.create_task(offers.make([b"\1" * (REQUEST_BYTES + 1)], 0.0))
        await began(service, LARGE_REQUESTS)
        await asyncio.sleep(0.05)
        assert len(service.requests) == LARGE_REQUESTS
        service.gate.set()
    assert len(service.requests) == LARGE_REQUESTS + 1


async def test_what_had_yet_to_begin_when_the_client_closes_is_told() -> None:
    for size in (1, REQUEST_BYTES + 1):
        async with offering() as (_, offers):
            task = asyncio.create_task(offers.make([b"\1" * size], 0.0))
            await asyncio.sleep(0)
            await offers.close()
            with pytest.raises(UnavailableError, match="closed"):
                await task


async def test_what_is_under_way_when_the_client_closes_is_told() -> None:
    async with offering() as (service, offers):
        tasks = await occupy(service, offers)
        tasks += [asyncio.create_task(offers.make([b"\1"], 0.0)) for _ in range(3)]
        await asyncio.sleep(0)
        await offers.close()
        for task in tasks:
            with pytest.raises(UnavailableError, match="closed"):
                await task


async def test_a_bug_reaches_who_waits_and_holds_up_nobody_behind_it() -> None:
    async with offering() as (service, offers):
        service.error = RuntimeError("unforeseen")
        first = await occupy(service, offers)
        behind = asyncio.ensure_future(offers.make([b"\1"], 0.0))
        service.gate.set()
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*first, behind, return_exceptions=True)
        assert [str(each) for each in answers] == ["unforeseen"] * (REQUESTS + 1)


async def test_an_answer_of_another_length_is_an_error_of_all() -> None:
    async def fewer(request: Callable[[], bytes]) -> pb.AppendGroupsResponse:
        return pb.AppendGroupsResponse()

    offers = Offers(fewer, OtherClock())
    async with asyncio.timeout(60):
        answer, *_ = await asyncio.gather(offers.make([b"\1"], 0.0), return_exceptions=True)
    assert isinstance(answer, ValueError)


async def test_moments_are_told_by_the_service_s_clock_once_it_is_known() -> None:
    async with offering() as (service, offers):
        service.gate.set()
        before = time.perf_counter()
        await offers.make([b"\1"], before)
        known = time.perf_counter()
        service.gate.clear()
        first = asyncio.create_task(offers.make([b"\1"], before - 5))
        await began(service, 2)
        await asyncio.sleep(0.2)  # on its way for longer than the one before
        service.gate.set()
        await first
    assert service.clocks == [0, CLOCK]
    [[unknown], [played]] = service.played
    assert math.isnan(unknown)
    assert played - AHEAD == pytest.approx(before - 5, abs=known - before)
