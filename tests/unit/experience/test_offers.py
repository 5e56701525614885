"""Groups that come at the same moment go together, and none depends on another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.offers import REQUEST_BYTES, REQUEST_GROUPS, REQUESTS, Offers
from flexmarl.experience.wire import read_append
from flexmarl.runtime.errors import UnavailableError


class Service:
    """Answers when it is let: a group of even content is a duplicate."""

    def __init__(self) -> None:
        self.requests: list[list[bytes]] = []
        self.ages: list[list[float]] = []
        self.came = asyncio.Semaphore(0)
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def take(self, request: Callable[[], bytes]) -> pb.AppendGroupsResponse:
        sent, ages = read_append(request())
        groups = [bytes(group) for group in sent]
        self.requests.append(groups)
        self.ages.append(list(ages))
        self.came.release()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        outcomes = [pb.AppendOutcome(duplicate=group[0] % 2 == 0) for group in groups]
        return pb.AppendGroupsResponse(groups=outcomes)


@asynccontextmanager
async def offering() -> AsyncIterator[tuple[Service, Offers]]:
    service = Service()
    offers = Offers(service.take)
    try:
        yield service, offers
    finally:
        await offers.close()


async def began(service: Service, requests: int) -> None:
    """So many more requests have come."""
    async with asyncio.timeout(60):
        for _ in range(requests):
            await service.came.acquire()


async def test_what_comes_meanwhile_goes_with_the_next_request() -> None:
    async with offering() as (service, offers), asyncio.TaskGroup() as tasks:
        first = [tasks.create_task(offers.make([bytes([n])], 0.0)) for n in range(REQUESTS)]
        await began(service, REQUESTS)
        rest = [tasks.create_task(offers.make([bytes([n]), b"more"], 0.0)) for n in range(10, 20)]
        await asyncio.sleep(0)
        assert service.requests == [[bytes([n])] for n in range(REQUESTS)]
        service.gate.set()
        outcomes = [(await each).duplicate for each in (*first, *rest)]
    assert outcomes == [n % 2 == 0 for n in (*range(REQUESTS), *range(10, 20))]
    assert service.requests[REQUESTS:] == [[bytes([n]) + b"more" for n in range(10, 20)]]


async def test_a_request_carries_no_more_than_it_may() -> None:
    share = REQUEST_BYTES // 4
    async with offering() as (service, offers), asyncio.TaskGroup() as tasks:
        sizes = [1] * REQUESTS + [share] * 6 + [1] * (REQUEST_GROUPS + 1)
        for size in sizes:
            tasks.create_task(offers.make([bytes(size)], 0.0))
        await began(service, REQUESTS)
        service.gate.set()
    assert [len(each) for each in service.requests[REQUESTS:]] == [4, REQUEST_GROUPS, 3]
    assert max(sum(map(len, each)) for each in service.requests) <= REQUEST_BYTES


async def test_a_large_group_waits_for_none() -> None:
    async with offering() as (service, offers), asyncio.TaskGroup() as tasks:
        for _ in range(REQUESTS):
            tasks.create_task(offers.make([b"\1"], 0.0))
        await began(service, REQUESTS)
        tasks.create_task(offers.make([b"\1" * (REQUEST_BYTES + 1)], 0.0))
        await began(service, 1)
        service.gate.set()


async def test_what_nobody_waits_for_any_more_is_not_sent() -> None:
    async with offering() as (service, offers), asyncio.TaskGroup() as tasks:
        for _ in range(REQUESTS):
            tasks.create_task(offers.make([b"\1"], 0.0))
        await began(service, REQUESTS)
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


async def test_what_is_under_way_when_the_client_closes_is_told() -> None:
    async with offering() as (service, offers):
        tasks = [asyncio.create_task(offers.make([b"\1"], 0.0)) for _ in range(REQUESTS + 3)]
        await began(service, REQUESTS)
        await offers.close()
        for task in tasks:
            with pytest.raises(UnavailableError, match="closed"):
                await task


async def test_a_bug_reaches_who_waits_and_holds_up_nobody_behind_it() -> None:
    async with offering() as (service, offers):
        service.error = RuntimeError("unforeseen")
        first = [asyncio.ensure_future(offers.make([b"\1"], 0.0)) for _ in range(REQUESTS)]
        await began(service, REQUESTS)
        behind = asyncio.ensure_future(offers.make([b"\1"], 0.0))
        service.gate.set()
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*first, behind, return_exceptions=True)
        assert [str(each) for each in answers] == ["unforeseen"] * (REQUESTS + 1)


async def test_an_answer_of_another_length_is_an_error_of_all() -> None:
    async def fewer(request: Callable[[], bytes]) -> pb.AppendGroupsResponse:
        return pb.AppendGroupsResponse()

    offers = Offers(fewer)
    async with asyncio.timeout(60):
        answer, *_ = await asyncio.gather(offers.make([b"\1"], 0.0), return_exceptions=True)
    assert isinstance(answer, ValueError)


async def test_ages_count_until_the_group_is_sent_and_for_as_long_as_the_last_one_travelled() -> (
    None
):
    async with offering() as (service, offers):
        service.gate.set()
        await offers.make([b"\1"], time.perf_counter() - 5)
        service.gate.clear()
        first = asyncio.create_task(offers.make([b"\1"], time.perf_counter()))
        await began(service, 2)
        await asyncio.sleep(0.2)
        service.gate.set()
        await first
        await offers.make([b"\1"], time.perf_counter())
    assert [5 <= age < 6 for [age] in service.ages] == [True, False, False]
    assert service.ages[1][0] < 0.2 <= service.ages[2][0]
