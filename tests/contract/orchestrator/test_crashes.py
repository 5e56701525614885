"""Steps that overlap, and whoever dies in between: every task is trained once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.orchestrator.conftest import Team, team
from tests.contract.orchestrator.test_pipeline import PARTIAL, at, crash, stale, until
from tests.unit.orchestrator.jobs import make_job

from flexmarl.experience.client import ExperienceClient
from flexmarl.runtime.errors import UnavailableError


@pytest.mark.parametrize("stored", [False, True])
async def test_invariant_6_a_worker_that_dies_while_it_stores_a_group_costs_no_task(
    tmp_path: Path, store_server: Server, stored: bool
) -> None:
    """Whether the store has it or not: its task is trained once."""
    job = make_job(steps=5, pipeline=stale(1, **PARTIAL))
    async with team(job, tmp_path, store_server) as around:
        worker = around.workers[0]
        died: list[int] = []

        def die(place: tuple[int, int]) -> None:
            if place[0] == 1 and not died:
                died.append(place[0])
                worker.restart()
                raise UnavailableError("killed")

        def die_with_what_it_holds(policy: str, step: int, index: int) -> None:
            if step == 1 and not died:
                died.append(step)
                worker.restart()

        if stored:
            worker.on_stored = die
        else:
            around.trainers[0].on_group = die_with_what_it_holds
        await around.run()
        assert died
        around.assert_every_task_was_trained_once()


@pytest.mark.parametrize("partial", [{}, PARTIAL], ids=["fixed", "partial"])
async def test_invariant_6_a_restarted_orchestrator_trains_every_task_once(
    tmp_path: Path, store_server: Server, partial: dict[str, Any]
) -> None:
    job = make_job(steps=6, pipeline=stale(2, **partial))
    async with team(job, tmp_path, store_server) as around:
        worker = around.workers[0]
        gates = worker.gates = {group: asyncio.Event() for group in [(0, 3), (2, 4), (4, 1)]}
        for group, gate in gates.items():
            before = len(around.requests)
            run = asyncio.ensure_future(around.run())
            await until(lambda: group in map(at, around.requests[before:]))  # noqa: B023
            await crash(run)
            gate.set()
        await around.run()
        around.assert_every_task_was_trained_once()
        assert all(times == 1 for times in around.ledger.times.values())


async def test_invariant_6_a_roll_back_draws_again_what_was_not_trained_by_the_checkpoint(
    tmp_path: Path, store_server: Server
) -> None:
    job = make_job(steps=6, pipeline=stale(2, **PARTIAL), checkpoint={"everySteps": 2})
    async with team(job, tmp_path, store_server) as around:
        worker = around.workers[0]
        lost: list[int] = []
        straggler = worker.gates[1, 2] = asyncio.Event()

        def lose(policy: str, step: int) -> None:
            if step == 1:
                straggler.set()
            if (policy, step) == ("p0", 3) and not lost:
                lost.append(step)
                around.memory.states.clear()
                for trainer in around.trainers:
                    trainer.restart()
                raise UnavailableError("killed")

        around.trainers[0].on_commit = lose
        await around.run()
        assert lost
        around.assert_every_task_was_trained_once()


async def test_a_step_that_the_trainers_finished_before_its_answers_came_lets_its_groups_go(
    tmp_path: Path, store_server: Server
) -> None:
    """A group that was stored although its call failed is not asked for for ever."""
    async with team(make_job(), tmp_path, store_server) as around:
        worker = around.workers[0]
        broken: list[tuple[int, int]] = []

        def tear(place: tuple[int, int]) -> None:
            if place == (1, 2) and not broken:
                broken.append(place)
                raise UnavailableError("the connection broke")

        worker.on_stored = tear
        gate = worker.gates[3, 1] = asyncio.Event()
        run = asyncio.ensure_future(around.run())
        await until(lambda: (3, 1) in map(at, around.requests))
        asked = [at(request) for request in around.requests].count((1, 2))
        await asyncio.sleep(2.5)  # longer than the longest pause between two tries
        assert [at(request) for request in around.requests].count((1, 2)) == asked
        gate.set()
        await run
        assert broken
        around.assert_trained_as_if_nothing_had_happened()


async def test_a_crash_between_metrics_and_state_keeps_what_the_metrics_say(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        await stop_before_the_state(around, step=2)
        line = around.lines("metrics")[1]
        assert line["groups"][0]["solved"]
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        assert around.lines("metrics")[1] == line
        assert len([shown for shown in around.lines("episodes") if shown["step"] == 1]) == 5


async def test_a_crash_between_a_checkpoint_and_the_state_leaves_the_one_to_fall_back_to(
    tmp_path: Path, store_server: Server
) -> None:
    job = make_job(checkpoint={"everySteps": 1, "keep": 1})
    async with team(job, tmp_path, store_server) as around:
        await stop_before_the_state(around, step=3)
        around.memory.states.clear()
        for trainer in around.trainers:
            trainer.restart()
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        kept = [path.name for path in (around.settings.run_dir / "checkpoints").iterdir()]
        assert kept == ["step-00000004"]


async def stop_before_the_state(around: Team, step: int) -> None:
    class CrashError(Exception):
        pass

    put = ExperienceClient.put_state

    async def put_state(self: ExperienceClient, incarnation: int, fields: dict[str, str]) -> None:
        if fields.get("step") == str(step):
            raise CrashError
        await put(self, incarnation, fields)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExperienceClient, "put_state", put_state)
        with pytest.raises(CrashError):
            await around.run()
