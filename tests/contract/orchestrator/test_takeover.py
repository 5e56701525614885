"""An orchestrator that dies, is replaced or resumed: the next one goes on where it stood."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.orchestrator.conftest import QUICK, Team, team
from tests.contract.orchestrator.test_failures import once_at
from tests.contract.orchestrator.test_pipeline import until
from tests.unit.orchestrator.jobs import make_job

from flexmarl.experience.client import ExperienceClient
from flexmarl.orchestrator.limits import Limits
from flexmarl.runtime.errors import (
    FencedError,
)


async def stop_at(around: Team, step: int, index: int, limits: Limits = QUICK) -> None:
    """Run the orchestrator and end it as a crash would, while a group is played."""
    reached = asyncio.Event()
    around.workers[0].plays = once_at(step, index, reached.set)
    running_job = asyncio.ensure_future(around.run(limits))
    await reached.wait()
    running_job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running_job


async def test_a_restarted_orchestrator_takes_over_in_the_middle_of_a_step(
    tmp_path: Path, store_server: Server
) -> None:
    job = make_job(
        eval={"data": {"uri": "file://held-out.jsonl"}}, batch={"tasksPerStep": 40, "groupSize": 2}
    )
    async with team(job, tmp_path, store_server) as around:
        # Some are stored by then: fewer are in flight at once.
        await stop_at(around, 2, 35, replace(QUICK, episodes_in_flight=20))
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        assert [line["step"] for line in around.lines("evals")] == [0, 4]
        before = around.lines("metrics")[2]["counts"]["groups-from-before"]
        assert 0 < before < 40
        assert all(times == 1 for times in around.ledger.times.values())
        again = [r for r in around.requests if r.id.incarnation == 2 and r.id.step == 2]
        assert len(again) == 40 - before


@pytest.mark.parametrize("moment", ["before the state", "before the close"])
async def test_an_orchestrator_that_died_at_the_end_of_a_step_trains_nothing_twice(
    tmp_path: Path, store_server: Server, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class CrashError(Exception):
        pass

    async def put_state(self: ExperienceClient, incarnation: int, fields: dict[str, str]) -> None:
        ends = fields.get("step") == "2"
        if not ends or moment == "before the close":
            await put(self, incarnation, fields)
        if ends:
            raise CrashError

    async with team(make_job(), tmp_path, store_server) as around:
        put = ExperienceClient.put_state
        with monkeypatch.context() as patch:
            patch.setattr(ExperienceClient, "put_state", put_state)
            with pytest.raises(CrashError):
                await around.run()
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        assert all(times == 1 for times in around.ledger.times.values())


async def test_a_second_orchestrator_silences_the_first(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        reached = asyncio.Event()
        around.workers[0].plays = once_at(2, 0, reached.set)
        around.workers[0].seconds = 0.3
        first = asyncio.ensure_future(around.run())
        await reached.wait()
        second = asyncio.ensure_future(around.run())
        with pytest.raises(FencedError):
            await first
        await second
        around.assert_trained_as_if_nothing_had_happened()


@asynccontextmanager
async def reading_late(around: Team, moved: Callable[[], bool]) -> AsyncIterator[None]:
    """Whoever asks in the block where the job stands hears of it once the orchestrator of before,
    whose clients have asked already, has `moved` on, or cannot."""
    asked, get_state = set[ExperienceClient](), ExperienceClient.get_state

    async def late(self: ExperienceClient) -> dict[str, str]:
        known = self in asked
        asked.add(self)
        fields = await get_state(self)
        if armed and not known:
            end = time.monotonic() + 5
            while not (first.done() or moved() or time.monotonic() > end):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return fields

    armed = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExperienceClient, "get_state", late)
        first = asyncio.ensure_future(around.run())
        await until(lambda: len(around.lines("metrics")) >= 2)
        armed = True
        yield
        with pytest.raises(FencedError):
            await first


@pytest.mark.parametrize(
    "pipeline",
    [{}, {"maxStaleness": 2}, {"maxStaleness": 1, "partialRollout": True}],
    ids=["strict", "stale", "partial"],
)
async def test_what_the_first_orchestrator_does_while_the_second_begins_is_not_undone(
    tmp_path: Path, store_server: Server, pipeline: dict[str, Any]
) -> None:
    job = make_job(steps=8, pipeline=pipeline, checkpoint={"everySteps": 2})
    async with team(job, tmp_path, store_server) as around:
        around.workers[0].seconds = 0.05
        before = 0

        def moved() -> bool:
            return len(around.lines("metrics")) > before

        async with reading_late(around, moved):
            before = len(around.lines("metrics"))
            await around.run()
        around.assert_every_task_was_trained_once()
        assert set(around.ledger.times.values()) == {1}


async def test_a_draw_that_the_first_orchestrator_still_placed_is_played_into_no_other_place(
    tmp_path: Path, store_server: Server
) -> None:
    job = make_job(steps=6, pipeline={"maxStaleness": 1, "partialRollout": True})
    async with team(job, tmp_path, store_server) as around:
        worker = around.workers[0]
        worker.seconds = 0.05
        held = [(2, index) for index in range(3)]
        worker.gates.update({draw: asyncio.Event() for draw in held})

        def moved() -> bool:
            worker.gates[held[0]].set()
            return held[0] in worker.placed

        async with reading_late(around, moved):
            await until(lambda: set(held) <= {(r.id.step, r.id.index) for r in around.requests})
            second = asyncio.ensure_future(around.run())
            await asyncio.sleep(1)
            for draw in held:
                worker.gates[draw].set()
            await second
        around.assert_every_task_was_trained_once()


async def test_a_resumed_job_goes_on_with_the_very_same_sequence(
    tmp_path: Path, store_server: Server
) -> None:
    job = make_job(steps=6, checkpoint={"everySteps": 2})
    async with team(job, tmp_path, store_server) as first:
        await stop_at(first, 5, 1)
        before = [line["tasks"] for line in first.lines("metrics")][:4]
    async with team(job, tmp_path, store_server) as second:
        await second.run(resume_from=str(tmp_path / "run/checkpoints/step-00000004"))
        second.assert_trained_as_if_nothing_had_happened()
        assert [line["tasks"] for line in second.lines("metrics")][:4] == before
        assert {request.id.step for request in second.requests} == {4, 5}
        lineage = second.json("checkpoints/step-00000006/manifest.json")["lineage"]
        assert lineage == [first.settings.job_uid, second.settings.job_uid]
