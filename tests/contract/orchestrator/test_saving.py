"""An orchestrator that is asked to save gives up what is not finished, saves, and rests."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.orchestrator.conftest import Team, team
from tests.contract.orchestrator.test_failures import once_at
from tests.unit.orchestrator.jobs import make_job

from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.orchestrator.desk import Desk
from flexmarl.runtime.errors import UnavailableError

HELD_OUT = {"data": {"uri": "file://held-out.jsonl"}, "everySteps": 2}


async def suspend(around: Team, asked: asyncio.Event) -> int | None:
    """Run until `asked`; the step that was saved then. All memory is lost."""
    desk = Desk()
    run = asyncio.ensure_future(around.run(desk=desk))
    await asked.wait()
    desk.save.set()
    end = time.monotonic() + 20
    while desk.saved is None:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    around.memory.states.clear()
    around.workers[0].gates.clear()
    return desk.saved


async def test_a_step_is_given_up_and_played_again_from_what_was_saved(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(checkpoint={"everySteps": 4}), tmp_path, store_server) as around:
        asked, worker = asyncio.Event(), around.workers[0]
        worker.gates[2, 3] = asyncio.Event()
        worker.plays = once_at(2, 3, asked.set)
        assert await suspend(around, asked) == 2
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()


async def test_a_step_that_is_played_goes_to_its_end(tmp_path: Path, store_server: Server) -> None:
    async with team(make_job(checkpoint={"everySteps": 4}), tmp_path, store_server) as around:
        asked = asyncio.Event()

        def commits(policy: str, step: int) -> None:
            if step == 1:
                asked.set()

        for trainer in around.trainers:
            trainer.on_commit = commits
        assert await suspend(around, asked) == 2
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()


async def test_a_step_that_is_trained_goes_to_its_end_though_an_answer_got_lost(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(checkpoint={"everySteps": 4}), tmp_path, store_server) as around:
        asked, worker = asyncio.Event(), around.workers[0]

        def loses(place: tuple[int, int]) -> None:
            if place == (1, 3):
                worker.gates[place] = asyncio.Event()  # asked again, it says nothing
                worker.on_stored = lambda place: None
                raise UnavailableError("its answer got lost")

        def commits(policy: str, step: int) -> None:
            if step == 1:  # and the orchestrator hears of it
                asyncio.get_running_loop().call_later(0.5, asked.set)

        worker.on_stored = loses
        for trainer in around.trainers:
            trainer.on_commit = commits
        assert await suspend(around, asked) == 2
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        assert around.ledger.times["p0", 1] == around.ledger.times["p1", 1] == 1


@pytest.mark.parametrize("version", [2, 4])
async def test_an_evaluation_is_given_up_and_done_later(
    tmp_path: Path, store_server: Server, version: int
) -> None:
    job = make_job(eval=HELD_OUT, checkpoint={"everySteps": 4})
    async with team(job, tmp_path, store_server) as around:
        asked, worker = asyncio.Event(), around.workers[0]

        def evaluates(request: Any) -> None:
            if request.purpose == rollout_pb2.EVAL and request.id.step == version:
                worker.gates[version, 1] = asyncio.Event()
                asked.set()

        worker.plays = evaluates
        assert await suspend(around, asked) == version
        worker.plays = lambda request: None
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        assert [line["step"] for line in around.lines("evals")] == [0, 2, 4]
