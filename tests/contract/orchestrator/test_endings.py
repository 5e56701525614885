"""What ends a job, in which words, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.orchestrator.conftest import QUICK, team
from tests.unit.orchestrator.jobs import make_job

from flexmarl.runtime.errors import (
    JobFailedError,
)


async def test_a_task_that_always_fails_does_not_block_the_job(
    tmp_path: Path, store_server: Server
) -> None:
    tries: list[tuple[int, int]] = []

    def plays(request: Any) -> None:
        if request.task_id == "3":
            tries.append((request.id.step, request.id.index))
            raise RuntimeError("cannot be played")

    async with team(make_job(), tmp_path, store_server) as around:
        around.workers[0].plays = plays
        await around.run()
        assert around.json("progress.json")["phase"] == "Complete"
        assert all(tries.count(group) == QUICK.group_tries for group in set(tries))
        given_up = [line["counts"].get("groups-given-up", 0) for line in around.lines("metrics")]
        assert sum(given_up) == len(set(tries))
        for step, index in set(tries):
            assert around.ledger.trained["p0", step][index] == "3:[]"


async def test_workers_that_always_fail_end_the_job_with_their_words(
    tmp_path: Path, store_server: Server
) -> None:
    def plays(request: Any) -> None:
        raise RuntimeError("no such module")

    async with team(make_job(), tmp_path, store_server) as around:
        around.workers[0].plays = plays
        with pytest.raises(JobFailedError, match="no such module"):
            await around.run()
        progress = around.json("progress.json")
        assert progress["phase"] == "Failed"
        assert "no such module" in progress["message"]


async def test_a_step_in_which_nothing_can_be_scored_ends_the_job(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        around.workers[0].outcome = lambda request: "workflow-error"
        with pytest.raises(JobFailedError, match=r"12 x workflow-error.*ValueError: broken"):
            await around.run()


async def test_steps_that_update_nothing_end_the_job_after_a_while(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(steps=9), tmp_path, store_server) as around:
        for trainer in around.trainers:
            trainer.learns = False
        with pytest.raises(JobFailedError, match="no policy was updated in 3 steps in a row"):
            await around.run()
        assert len(around.lines("metrics")) == QUICK.idle_steps


async def test_an_engine_with_other_weights_than_the_trainer_s_ends_the_job(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        next(iter(around.engines.values())).corrupt = True
        with pytest.raises(JobFailedError, match="holds other weights than the trainer published"):
            await around.run()
    unchecked = make_job(weightSync={"check": False})
    async with team(unchecked, tmp_path / "run", store_server) as around:
        next(iter(around.engines.values())).corrupt = True
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()


async def test_a_service_that_never_comes_is_named(tmp_path: Path, store_server: Server) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        with pytest.raises(JobFailedError, match=r"trainer 2 at 127\.0\.0\.1:1"):
            await around.run(
                replace(QUICK, start=1), trainers=[*around.settings.trainers, "127.0.0.1:1"]
            )


async def test_a_trainer_s_verdict_ends_the_job(tmp_path: Path, store_server: Server) -> None:
    async with team(make_job(), tmp_path, store_server) as around:

        def diverge(policy: str, step: int, index: int) -> None:
            raise JobFailedError("the gap is 3.2")

        around.trainers[0].on_group = diverge
        with pytest.raises(JobFailedError, match=r"the gap is 3\.2"):
            await around.run()
