"""Whatever dies when: nothing is trained twice, nothing is lost, and the files tell one story."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.contract.experience.conftest import Server, running
from tests.contract.orchestrator.conftest import QUICK, Team, team, told
from tests.unit.orchestrator.jobs import make_job

from flexmarl.experience.keys import Keys
from flexmarl.orchestrator.groups import Groups
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.training import Training
from flexmarl.runtime.errors import (
    FencedError,
    JobFailedError,
    NotFoundError,
    UnavailableError,
)


def once_at(step: int, index: int, action: Callable[[], None]) -> Callable[[Any], None]:
    """For `FakeWorker.plays`: do something the first time that group is played."""
    pending = [action]

    def plays(request: Any) -> None:
        if (request.id.step, request.id.index) == (step, index) and pending:
            pending.pop()()

    return plays


async def test_workers_that_fail_at_random_cost_only_time(
    tmp_path: Path, store_server: Server
) -> None:
    dice = random.Random(3)
    failures: dict[tuple[int, int], int] = {}

    def plays(request: Any) -> None:
        roll = dice.random()
        key = (request.id.step, request.id.index)
        if roll < 0.2:
            raise UnavailableError("restarting")
        if roll < 0.35 and failures.get(key, 0) < 2:
            failures[key] = failures.get(key, 0) + 1
            raise RuntimeError("a bug")

    async with team(make_job(), tmp_path, store_server, workers=2) as around:
        for worker in around.workers:
            worker.plays = plays
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        assert sum(line["counts"].get("groups-reissued", 0) for line in around.lines("metrics")) > 0


async def test_an_engine_that_lost_its_weights_gets_them_again(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        engine = next(iter(around.engines.values()))
        around.workers[0].plays = once_at(2, 3, engine.restart)
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        assert [version for _, version in engine.loads] == [0, 1, 2, 2, 3, 4]


async def test_a_trainer_that_died_mid_step_trains_the_step_again(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        trainer = around.trainers[1]
        died: list[int] = []

        def die(policy: str, step: int, index: int) -> None:
            if step == 2 and index == 4 and not died:
                died.append(index)
                trainer.restart()

        trainer.on_group = die
        await around.run()
        assert died
        around.assert_trained_as_if_nothing_had_happened()
        assert len(trainer.binds) == 2


async def test_a_trainer_that_died_between_steps_is_bound_again(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(policies=3), tmp_path, store_server, slots=1) as around:
        around.workers[0].plays = once_at(1, 0, around.trainers[0].restart)
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()


@pytest.mark.parametrize(("every", "falls_to"), [(2, 2), (100, 0)])
async def test_a_lost_state_takes_all_policies_back_to_the_last_checkpoint_together(
    tmp_path: Path, store_server: Server, every: int, falls_to: int
) -> None:
    job = make_job(steps=5, checkpoint={"everySteps": every})
    async with team(job, tmp_path, store_server) as around:

        def lose() -> None:
            del around.memory.states["p1"]
            around.trainers[1].restart()

        around.workers[0].plays = once_at(3, 2, lose)
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        trained_twice = {step for (_, step), times in around.ledger.times.items() if times > 1}
        assert trained_twice == set(range(falls_to, 3)) | (
            {3} if around.ledger.times["p0", 3] > 1 else set()
        )
        incarnations = {r.id.step: set() for r in around.requests}  # type: dict[int, set[int]]
        for request in around.requests:
            incarnations[request.id.step].add(request.id.incarnation)
        assert incarnations[3] == {1, 2}
        assert incarnations[4] == {2}


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("step", [0, 2])
async def test_memory_lost_right_behind_a_checkpoint_costs_the_step(
    tmp_path: Path, store_server: Server, slots: int, step: int
) -> None:
    """Groups that one policy has acknowledged are not there for it any more, so none counts."""
    job = make_job(checkpoint={"everySteps": 2})
    async with team(job, tmp_path, store_server, slots=slots) as around:

        def lose(policy: str, trained: int) -> None:
            if (policy, trained) == ("p0", step) and around.ledger.times[policy, trained] == 1:
                around.memory.states.clear()
                for trainer in around.trainers:
                    trainer.restart()
                for engine in around.engines.values():
                    engine.restart()
                raise UnavailableError("killed")

        around.trainers[0].on_commit = lose
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        assert around.ledger.times["p0", step] == 2
        assert {r.id.incarnation for r in around.requests if r.id.step == step} == {1, 2}


async def test_published_weights_that_are_gone_take_the_job_back(
    tmp_path: Path, store_server: Server
) -> None:
    """No trainer is asked for anything while engines load: they are the first to know."""
    job = make_job(checkpoint={"everySteps": 2})
    async with team(job, tmp_path, store_server) as around:
        engine = next(iter(around.engines.values()))
        lost: list[int] = []

        def load(version: int) -> None:
            if version == 3 and not lost:
                lost.append(version)
                around.memory.states.clear()
                for trainer in around.trainers:
                    trainer.restart()
                raise NotFoundError("no such set")

        engine.on_load = load
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        assert lost == [3]


async def test_groups_lost_after_a_policy_trained_them_take_the_job_back(
    tmp_path: Path, store_server: Server
) -> None:
    """The store still knows the incarnation, but lost its last second: they cannot be played again,
    for the policy's engines have moved on."""
    job = make_job(checkpoint={"everySteps": 2})
    async with team(job, tmp_path, store_server, slots=1) as around:

        def lose(policy: str, trained: int) -> None:
            if (policy, trained) == ("p0", 3) and around.ledger.times[policy, trained] == 1:
                keys = Keys(around.settings.job_uid)
                with redis.from_url(store_server.url) as server:
                    server.delete(keys.stored(3), keys.entries("p1", 3))

        around.trainers[0].on_commit = lose
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        assert around.ledger.times["p0", 2] == around.ledger.times["p0", 3] == 2


async def standing_still(
    around: Team, limits: Limits, go_on: asyncio.Event, what: str = "a step"
) -> asyncio.Future[None]:
    """An orchestrator that has trained a step, and stands still after the next one, or after the
    evaluation then, until `go_on`. Whoever runs later does not."""
    stopped = asyncio.Event()
    owner, name = (Groups, "idle") if what == "an evaluation" else (Training, "step")
    still = getattr(owner, name)

    async def stand_still(self: Any, *given: Any) -> Any:
        result = await still(self, *given)
        if not stopped.is_set() and around.lines("metrics"):
            stopped.set()
            await go_on.wait()
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, stand_still)
        running = asyncio.ensure_future(around.run(limits))
        await stopped.wait()
    return running


@pytest.mark.parametrize("what", ["a step", "an evaluation"])
async def test_an_orchestrator_that_was_replaced_writes_nothing_down(
    tmp_path: Path, store_server: Server, what: str
) -> None:
    """It stood still while another finished the job, and learns of it at its next word."""
    job = make_job(eval={"data": {"uri": "file://held-out.jsonl"}, "everySteps": 2})
    go_on = asyncio.Event()
    async with team(job, tmp_path, store_server) as around:
        blind = replace(QUICK, confirm=1000, watch=1000, answers=0.1)
        first = await standing_still(around, blind, go_on, what)
        await around.run()
        go_on.set()
        with pytest.raises(FencedError):
            await first
        await around.run()  # started again by who does not know better
        around.assert_trained_as_if_nothing_had_happened()
        assert [line["step"] for line in around.lines("evals")] == [0, 2, 4]


async def test_the_engines_of_a_job_obey_only_its_last_orchestrator(
    tmp_path: Path, store_server: Server
) -> None:
    """One that was replaced and does not know it yet would load what it believes in, again and
    again, under the turns of its successor."""
    async with team(make_job(), tmp_path, store_server) as around:
        first = await standing_still(around, replace(QUICK, confirm=1000), asyncio.Event())
        second = asyncio.ensure_future(around.run())
        with pytest.raises(FencedError):  # by its watchers alone: it never goes on
            await first
        await second
        around.assert_trained_as_if_nothing_had_happened()
        for engine in around.engines.values():
            assert engine.incarnation == 2
            assert [version for _, version in engine.loads] == sorted(
                version for _, version in engine.loads
            )


async def test_engines_that_know_more_than_a_store_that_lost_everything_are_outranked(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        for engine in around.engines.values():
            engine.incarnation = 7
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        assert {engine.incarnation for engine in around.engines.values()} == {8}


async def test_a_store_that_comes_back_empty_changes_nothing_in_the_end(tmp_path: Path) -> None:
    """Policies that finish the step from what they had leased are ahead of a store that lacks its
    groups: then all go back together, else the step alone is played again."""
    with running() as server:
        async with team(make_job(), tmp_path, server) as around:
            lost: list[int] = []

            def lose_once(policy: str, step: int, index: int) -> None:
                if step == 2 and not lost:
                    lost.append(index)
                    server.lose_memory()

            around.trainers[0].on_group = lose_once
            await around.run()
            assert lost
            around.assert_trained_as_if_nothing_had_happened()


async def test_trainers_that_wait_for_what_is_there_are_bound_anew(
    tmp_path: Path, store_server: Server
) -> None:
    """As one does whose place in the store's order lies behind all that is stored from now on."""
    async with team(make_job(), tmp_path, store_server) as around:
        trainer = around.trainers[0]
        gate = trainer.gates["p0", 2] = asyncio.Event()

        def bound(policy: str) -> None:
            if trainer.binds.count(policy) == 2:
                gate.set()

        trainer.on_bind = bound
        await around.run(replace(QUICK, train_tail=1.0))
        assert gate.is_set()
        around.assert_trained_as_if_nothing_had_happened()


async def test_trainers_that_hang_all_the_same_end_the_job(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        around.trainers[0].gates["p0", 2] = asyncio.Event()
        with pytest.raises(JobFailedError, match=r"step 2: .* bound anew, and 0\.5 s later"):
            await around.run(replace(QUICK, train_tail=0.5))
        assert around.trainers[0].binds.count("p0") == 2


async def test_a_worker_that_hangs_with_a_whole_group_is_named_and_its_group_played_again(
    tmp_path: Path, store_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flexmarl.orchestrator.placing.PLACE_TRIES", 4)
    job = make_job(pipeline={"maxStaleness": 1, "partialRollout": True})
    async with team(job, tmp_path, store_server, workers=2) as around:
        hangs = around.workers[0]
        hangs.place_gate = asyncio.Event()
        run = asyncio.ensure_future(around.run(replace(QUICK, place=0.3)))
        await told(around, "did not answer")
        await run
        around.assert_every_task_was_trained_once()
        assert not hangs.placed
