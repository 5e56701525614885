"""Who plays a task, and tasks that come to nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.orchestrator.conftest import QUICK, RECORDS, Team, team
from tests.contract.orchestrator.test_pipeline import until
from tests.contract.orchestrator.test_selection import OVERLAPS
from tests.unit.orchestrator.jobs import make_job

from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.data.tasks import tasks_of_step
from flexmarl.runtime.errors import JobFailedError

ALONE_OR_NOT = [{**r, "who": "p0" if n % 2 else "p0, p1"} for n, r in enumerate(RECORDS)]
CHOOSING = make_job(workflow={"name": "solver-verifier", "participants": "who"})


async def test_invariant_7_a_group_starts_once_its_participants_have_the_steps_version(
    tmp_path: Path, store_server: Server
) -> None:
    """Without staleness: those that need only p0 while p1 still trains the step before."""
    async with team(CHOOSING, tmp_path, store_server, records=ALONE_OR_NOT) as around:
        gate = around.trainers[1].gates["p1", 0] = asyncio.Event()
        run = asyncio.ensure_future(around.run())

        def started() -> list[Any]:
            return [request for request in around.requests if request.id.step == 1]

        alone = sum(int(task) % 2 for task in tasks_of(around, 1))
        await until(lambda: len(started()) == alone)
        await asyncio.sleep(0.1)
        assert alone == len(started())
        assert {route.policy for request in started() for route in request.routes} == {"p0"}
        gate.set()
        await run
        around.assert_every_task_was_trained_once()
        assert {len(line["tasks"]) for line in around.lines("metrics")} == {6}


async def test_a_group_that_may_not_start_yet_keeps_none_behind_it_from_starting(
    tmp_path: Path, store_server: Server
) -> None:
    """Though only one is played at a time."""
    async with team(CHOOSING, tmp_path, store_server, records=ALONE_OR_NOT) as around:
        gate = around.trainers[1].gates["p1", 0] = asyncio.Event()
        run = asyncio.ensure_future(around.run(replace(QUICK, episodes_in_flight=2)))
        alone = [task for task in tasks_of(around, 1) if int(task) % 2]
        await until(lambda: [r.task_id for r in around.requests if r.id.step == 1] == alone)
        gate.set()
        await run
        around.assert_every_task_was_trained_once()


async def test_held_out_tasks_are_played_by_those_that_they_name(
    tmp_path: Path, store_server: Server
) -> None:
    held_out = {"data": {"uri": "file://held-out.jsonl"}, "everySteps": 2}
    job = make_job(workflow={"name": "solver-verifier", "participants": "who"}, eval=held_out)
    async with team(job, tmp_path, store_server, records=ALONE_OR_NOT) as around:
        await around.run()
        asked = [r for r in around.requests if r.purpose == rollout_pb2.EVAL]
        assert {(r.task_id, route.policy) for r in asked for route in r.routes} == {
            ("0", "p0"), ("0", "p1"), ("1", "p0"), ("2", "p0"), ("2", "p1"), ("3", "p0")
        }  # fmt: skip


def tasks_of(around: Team, step: int) -> list[str]:
    spec = around.job.spec
    found = tasks_of_step(RECORDS, spec.seed, spec.data.shuffle, step, spec.batch.tasks_per_step)
    return [task.id for task in found]


@OVERLAPS
@pytest.mark.parametrize("outcome", ["timeout", "unscorable"])
async def test_a_task_that_never_comes_to_a_reward_is_counted_and_the_job_goes_on(
    tmp_path: Path, store_server: Server, overlap: dict[str, Any], outcome: str
) -> None:
    async with team(make_job(pipeline=overlap), tmp_path, store_server) as around:
        around.workers[0].outcome = lambda request: outcome if request.task_id == "3" else "ok"
        await around.run()
        around.assert_every_task_was_trained_once()
        counts = sum((Counter(line["counts"]) for line in around.lines("metrics")), Counter())
        assert counts[outcome] == 2 * around.ledger.tasks("p0")["3"]
        assert counts["ok"] + counts[outcome] == 48


async def test_rewards_that_are_all_none_end_the_job_with_their_number(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        around.workers[0].outcome = lambda request: "unscorable"
        with pytest.raises(JobFailedError, match=r"step 0: none of its 12 episodes.*unscorable"):
            await around.run()


@OVERLAPS
async def test_a_policy_that_never_acts_is_not_in_the_way(
    tmp_path: Path, store_server: Server, overlap: dict[str, Any]
) -> None:
    async with team(make_job(pipeline=overlap), tmp_path, store_server) as around:
        around.workers[0].silent = {"p1"}
        await around.run()
        around.assert_every_task_was_trained_once()
        for line in around.lines("metrics"):
            assert line["agents"]["p1"]["reward"] is None
            assert line["agents"]["p1"]["turns"] == 0
            assert line["agents"]["p0"]["scored"] == 12
