"""On a cluster whoever is away is the platform's to bring back: the job waits and says for whom."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.contract.experience.conftest import Server, running
from tests.contract.orchestrator.conftest import QUICK, TOKEN, Team, message_of, team, told
from tests.contract.orchestrator.fakes import register_trainer
from tests.contract.orchestrator.test_failures import once_at
from tests.contract.orchestrator.test_pipeline import until
from tests.unit.orchestrator.jobs import make_job

from flexmarl.orchestrator.desk import Desk
from flexmarl.orchestrator.limits import Limits
from flexmarl.runtime.errors import JobFailedError, UnavailableError
from flexmarl.runtime.grpc import serving
from flexmarl.runtime.settings import Discovery

SHORT = replace(
    QUICK, start=0.5, unreachable=0.5, store=0.5, train_tail=0.5, short_call=0.5, full=0.5
)
"""Less than anything here stays away."""
LONG = 1.5


def on_a_cluster(around: Team) -> dict[str, Any]:
    """Settings with which the same processes are found by name."""
    (worker,), engines = around.settings.workers, around.settings.engines
    by_policy = {policy: one for policy, (one,) in engines.items()}
    return {
        "discovery": Discovery(workers=worker, engines=by_policy),
        "workers": [],
        "engines": {},
    }


@asynccontextmanager
async def going(
    around: Team, limits: Limits = SHORT, desk: Desk | None = None
) -> AsyncIterator[asyncio.Future[None]]:
    run = asyncio.ensure_future(around.run(limits, desk, **on_a_cluster(around)))
    try:
        yield run
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


async def test_a_trainer_that_comes_late_is_waited_for_and_named(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around, AsyncExitStack() as stack:
        first, _ = around.settings.trainers
        async with serving(register_trainer(around.trainers[1]), "127.0.0.1:0") as free:
            pass
        around.settings = around.settings.model_copy(update={"trainers": [first, free]})
        async with going(around) as run:
            assert await told(around, "trainer 1") == f"waiting for trainer 1 at {free}"
            await asyncio.sleep(LONG)
            assert not run.done()
            late = serving(register_trainer(around.trainers[1]), free, token=TOKEN, drain_seconds=0)
            await stack.enter_async_context(late)
            await run
        around.assert_trained_as_if_nothing_had_happened()
        assert message_of(around) == ""


async def test_on_one_machine_it_ends_the_job(tmp_path: Path, store_server: Server) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        with pytest.raises(JobFailedError, match=r"not ready within 0\.5 s: trainer 2 at"):
            await around.run(SHORT, trainers=[*around.settings.trainers, "127.0.0.1:1"])
        assert around.json("progress.json")["message"].startswith("not ready within")


def away_until(back: asyncio.Event) -> Callable[..., None]:
    def plays(*_: Any) -> None:
        if not back.is_set():
            raise UnavailableError("the node is gone")

    return plays


@pytest.mark.parametrize("who", ["trainer", "worker", "engine"])
async def test_one_that_is_away_in_the_middle_is_waited_for_and_named(
    tmp_path: Path, store_server: Server, who: str
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        back, worker = asyncio.Event(), around.workers[0]
        gone = away_until(back)

        def strike() -> None:
            if who == "worker":
                worker.plays = gone
            elif who == "engine":
                engine = next(iter(around.engines.values()))
                engine.restart()
                engine.on_load = gone
            else:
                around.trainers[0].on_group = gone

        worker.plays = once_at(1, 2, strike)
        async with going(around) as run:
            message = await told(around, "the node is gone")
            assert message.startswith(f"waiting for {who}")
            await asyncio.sleep(LONG)
            assert not run.done(), run
            back.set()
            await run
        around.assert_trained_as_if_nothing_had_happened()


async def test_all_workers_that_left_are_waited_for(tmp_path: Path, store_server: Server) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("flexmarl.orchestrator.directory.SECONDS", 0.05)
            listed = True

            async def addresses(name: str) -> list[str]:
                return [name] if listed or name != where["discovery"].workers else []

            where = on_a_cluster(around)
            patch.setattr("flexmarl.orchestrator.directory.addresses", addresses)
            left = asyncio.Event()
            around.workers[0].plays = once_at(1, 2, left.set)
            async with going(around) as run:
                await left.wait()
                listed = False
                assert await told(around, "worker") == "waiting for a worker"
                await asyncio.sleep(LONG)
                assert not run.done()
                listed = True
                await run
        around.assert_trained_as_if_nothing_had_happened()


async def test_a_store_that_is_away_is_waited_for_and_named(tmp_path: Path) -> None:
    with running() as server:
        async with team(make_job(), tmp_path, server) as around:
            stopped, desk = asyncio.Event(), Desk()
            around.workers[0].plays = once_at(1, 2, stopped.set)
            async with going(around, desk=desk) as run:
                await stopped.wait()
                assert not desk.store_away
                await asyncio.to_thread(server.stop, signal.SIGKILL)
                await told(around, "waiting for the experience store")
                await until(lambda: "the store does not answer" in desk.store_away)
                await asyncio.sleep(LONG)
                assert not run.done()
                await asyncio.to_thread(server.start)
                await run
            assert not desk.store_away
            around.assert_trained_as_if_nothing_had_happened()


async def test_an_orchestrator_that_begins_while_the_store_is_away_says_so(tmp_path: Path) -> None:
    with running() as server:
        async with team(make_job(), tmp_path, server) as around:
            await asyncio.to_thread(server.stop, signal.SIGKILL)
            desk = Desk()
            async with going(around, desk=desk) as run:
                assert await told(around, "store") == "waiting for the experience store"
                assert desk.store_away
                await asyncio.sleep(LONG)
                assert not run.done()
                await asyncio.to_thread(server.start)
                await run
            assert not desk.store_away
            around.assert_trained_as_if_nothing_had_happened()


async def test_a_store_without_room_is_waited_for_and_how_full_it_is_is_told(
    tmp_path: Path,
) -> None:
    """One that somebody else fills; every group is sampled once."""
    with running(memory_mib=8) as server:
        async with team(make_job(), tmp_path, server) as around:
            around.workers[0].plays, desk = once_at(1, 2, partial(fill, server)), Desk()
            async with going(around, desk=desk) as run:
                words = await told(around, "room in the store")
                assert desk.store_full is None, "it may pass"
                assert re.search(r"the store: \d+ of 8 MiB are taken, \d of 6 groups of", words)
                await asyncio.sleep(LONG)
                assert not run.done()
                await until(lambda: desk.store_full is not None)
                assert desk.store_full is not None
                assert desk.store_full.most == 8 << 20
                with server.client() as other:
                    other.delete("foreign")
                await until(lambda: desk.store_full is None)
                await run
            around.assert_trained_as_if_nothing_had_happened()
            assert len(around.requests) == 24


def fill(server: Server) -> None:
    with server.client() as other:
        for size in (1 << 20, 1 << 16, 1 << 12, 1 << 8):
            with contextlib.suppress(redis.exceptions.OutOfMemoryError):
                while True:
                    other.append("foreign", b"x" * size)
