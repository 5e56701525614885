"""The store goes away and comes back: what was played waits in its worker."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs
from tests.contract.experience.conftest import Server, running
from tests.contract.rollout.test_selection import SINGLE, code_of, group, place

from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.server import register
from flexmarl.experience.store import Store
from flexmarl.runtime.grpc import serving

PATIENCE = 0.2
"""Of the store's client, in seconds."""
LONG = 1.5


@asynccontextmanager
async def own_store() -> AsyncIterator[tuple[Server, ExperienceClient]]:
    with running() as server:
        async with (
            Store(server.url, "default/away/1", ["solver"]) as store,
            serving(register(store), "127.0.0.1:0", drain_seconds=0) as address,
            ExperienceClient(address, timeout=1, patience=PATIENCE) as client,
        ):
            yield server, client


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - it comes over gRPC
            await asyncio.sleep(0.01)


async def test_a_played_group_waits_for_a_store_that_is_away_and_is_sampled_once(
    stage: Any,
) -> None:
    async with own_store() as (server, client), stage(SINGLE, store=client) as played:
        incarnation = await client.take_incarnation()
        await asyncio.to_thread(server.stop, signal.SIGKILL)
        with capture_logs() as logs:
            playing = [
                asyncio.ensure_future(played.run(id=group(incarnation, 1, index)))
                for index in range(4)
            ]
            await until(lambda: len(played.engines["solver"].turns) == 4 * 4)
            await asyncio.sleep(LONG)
            assert not any(each.done() for each in playing)
            await asyncio.to_thread(server.start)
            assert not any(each.duplicate for each in await asyncio.gather(*playing))
        assert len(played.engines["solver"].turns) == 4 * 4
        assert (await client.stored(1)).indexes == set(range(4))
        told = [each["event"] for each in logs if "the store is" in each["event"]]
        assert told == ["the store is away, what was played waits", "the store is back"]


async def test_a_held_group_is_asked_for_again_while_the_store_is_away(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flexmarl.rollout.worker.PLACE_SECONDS", 2 * PATIENCE)
    async with own_store() as (server, client), stage(SINGLE, store=client) as played:
        incarnation = await client.take_incarnation()
        await played.run(id=group(incarnation, 1, 0), hold=True)
        await asyncio.to_thread(server.stop, signal.SIGKILL)
        where = group(incarnation, 1, 0), group(incarnation, 1, 3)
        for _ in range(2):
            assert await code_of(place(played, *where)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        await asyncio.to_thread(server.start)
        assert not (await place(played, *where)).duplicate
        assert (await client.stored(1)).indexes == {3}


@pytest.mark.parametrize("store_back", [True, False], ids=["by the store", "by a request"])
async def test_a_worker_that_learns_of_a_newer_incarnation_waits_for_nothing(
    stage: Any, store_back: bool
) -> None:
    async with own_store() as (server, client), stage(SINGLE, store=client) as played:
        former = await client.take_incarnation()
        newer = await client.take_incarnation() if store_back else former + 1
        await asyncio.to_thread(server.stop, signal.SIGKILL)
        late = asyncio.ensure_future(code_of(played.run(id=group(former, 1, 0))))
        await until(lambda: len(played.engines["solver"].turns) == 4)
        await asyncio.sleep(2 * PATIENCE)
        assert not late.done()
        if store_back:
            await asyncio.to_thread(server.start)
        else:
            await played.run(id=group(newer, 1, 0), purpose=rollout_pb2.EVAL)
        assert await late is grpc.StatusCode.ABORTED
