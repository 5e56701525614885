"""What the store forgot, and what it was not told before a crash: nothing of it is missed."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from tests.contract.experience.conftest import Server, running
from tests.contract.orchestrator.conftest import QUICK, Team, team
from tests.contract.orchestrator.test_crashes import stop_before_the_state
from tests.contract.orchestrator.test_pipeline import at, crash, stale, until
from tests.unit.orchestrator.jobs import make_job

from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.entries import Name
from flexmarl.experience.fresh import Fresh
from flexmarl.experience.keys import Keys
from flexmarl.experience.samples import GroupId, PolicySamples
from flexmarl.runtime.errors import FencedError


async def test_a_store_that_is_away_while_a_step_is_trained_costs_no_group_in_flight(
    tmp_path: Path,
) -> None:
    """On one machine, and for longer than an orchestrator waits that needs it."""
    with running() as server:
        async with team(make_job(pipeline=stale(1)), tmp_path, server) as around:
            worker, stored = around.workers[0], list[tuple[int, int]]()
            worker.on_stored = stored.append
            trained = around.trainers[0].gates["p0", 1] = asyncio.Event()
            played = worker.gates[2, 0] = asyncio.Event()
            run = asyncio.ensure_future(around.run(replace(QUICK, store=0.5, short_call=0.5)))
            await until(lambda: (2, 0) in map(at, around.requests))
            await until(lambda: sum(step == 1 for step, _ in stored) == 6)
            await asyncio.sleep(2 * QUICK.confirm)
            await asyncio.to_thread(server.stop, signal.SIGKILL)
            await asyncio.sleep(1.5)
            assert not run.done(), run
            await asyncio.to_thread(server.start)
            played.set()
            trained.set()
            await run
            around.assert_every_task_was_trained_once()
            assert [at(request) for request in around.requests].count((2, 0)) == 1


async def test_groups_that_nobody_has_trained_yet_are_played_again(
    tmp_path: Path, store_server: Server
) -> None:
    """They were stored and answered for, so only the store itself can tell."""
    async with team(make_job(), tmp_path, store_server) as around:
        lost: list[tuple[int, int]] = []

        def lose(place: tuple[int, int]) -> None:
            if place[0] == 2 and not lost:
                lost.append(place)
                keys = Keys(around.settings.job_uid)
                with redis.from_url(store_server.url) as server:
                    server.delete(keys.stored(2), keys.entries("p0", 2), keys.entries("p1", 2))

        around.workers[0].on_stored = lose
        await around.run()
        assert [at(request) for request in around.requests].count(lost[0]) == 2
        around.assert_trained_as_if_nothing_had_happened()


@pytest.mark.parametrize("damage", ["undecodable", "lost"])
@pytest.mark.parametrize("ahead", [False, True], ids=["in time", "too late"])
async def test_what_one_policy_lost_is_played_again_for_it_alone_or_the_job_falls_back(
    tmp_path: Path,
    store_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
    ahead: bool,
) -> None:
    """`ahead`: the other policy has trained the step, and its engines cannot play it any more."""
    monkeypatch.setattr(Fresh.__init__, "__defaults__", (0,))  # the service restarted meanwhile
    job = make_job(pipeline={"maxStaleness": 1}, checkpoint={"everySteps": 2})
    async with team(job, tmp_path, store_server) as around:
        worker, (first, second) = around.workers[0], around.trainers
        before = [first.gates["p0", 1], second.gates["p1", 1]] = asyncio.Event(), asyncio.Event()
        if not ahead:
            second.gates["p1", 2] = asyncio.Event()
        stored: list[tuple[int, int]] = []
        worker.on_stored = stored.append
        # Too late is what is found after the other has trained.
        run = asyncio.ensure_future(around.run(replace(QUICK, confirm=2) if ahead else QUICK))
        await until(lambda: sum(step == 2 for step, _ in stored) == 6)
        damaged(around, store_server, "p0", (2, 3), damage)
        for gate in before:
            gate.set()
        await until(lambda: run.done() or stored.count((2, 3)) == 2)
        if not ahead:
            second.gates["p1", 2].set()
        await run
        around.assert_every_task_was_trained_once()
        again = [request for request in around.requests if at(request) == (2, 3)]
        incarnations = [request.id.incarnation for request in again]
        # Before it is known that the other policy is ahead, it may be asked for in vain.
        assert (incarnations[0], incarnations[-1]) == (1, 2 if ahead else 1)
        assert ahead or len(again) == 2
        assert len({request.seed for request in again}) == 1
        assert around.ledger.times["p1", 2] == 1 + ahead
        assert around.ledger.times["p0", 2] == 1


def damaged(around: Team, server: Server, policy: str, place: tuple[int, int], damage: str) -> None:
    """The server has nothing, or something else, of what the policy learns from that group."""
    keys, (step, index) = Keys(around.settings.job_uid), place
    with redis.from_url(server.url) as client:
        names = map(Name.parse, client.zrange(keys.entries(policy, step), 0, -1))
        [data] = [keys.data(policy, name.stream_id) for name in names if name.index == index]
        assert client.exists(data)
        if damage == "lost":
            client.delete(data)
        else:
            client.setrange(data, 7, b"\xff garbage")


async def test_a_store_without_the_incarnation_gets_the_next_one_at_once(tmp_path: Path) -> None:
    """Not when the step ends: until then a restart would find nothing."""
    with running() as server:
        async with team(make_job(), tmp_path, server) as around:
            gate = around.workers[0].gates[2, 3] = asyncio.Event()
            run = asyncio.ensure_future(around.run())
            await stands_at(around, step=2, incarnation=1)
            server.lose_memory()
            await stands_at(around, step=2, incarnation=2)
            gate.set()
            await run
            around.assert_trained_as_if_nothing_had_happened()


async def test_an_incarnation_that_the_store_forgot_is_over_all_the_same(tmp_path: Path) -> None:
    """Store and orchestrator are lost together; a worker of before is not, and stores a group."""
    with running() as server:
        async with team(make_job(checkpoint={"everySteps": 2}), tmp_path, server) as around:
            for _ in range(3):
                run = asyncio.ensure_future(around.run())
                gate = around.workers[0].gates[3, 1] = asyncio.Event()
                await until(lambda: (3, 1) in map(at, around.requests))
                await crash(run)
                around.workers[0].requests.clear()
                gate.set()
            server.lose_memory()
            gate = around.workers[0].gates[2, 1] = asyncio.Event()
            run = asyncio.ensure_future(around.run())
            await until(lambda: (2, 1) in map(at, around.requests))
            zombie = GroupId(3, 3, 0)
            with pytest.raises(FencedError):
                await around.experience.append_group(zombie, "t", empty(around, zombie))
            gate.set()
            await run
            around.assert_trained_as_if_nothing_had_happened()


def empty(around: Team, group: GroupId) -> list[PolicySamples]:
    return [PolicySamples(policy, group.step) for policy in around.job.spec.trained_policies]


async def stands_at(around: Team, step: int, incarnation: int) -> None:
    """Return once the store says so."""
    wanted = {"step": str(step), "incarnation": str(incarnation)}
    async with asyncio.timeout(30):
        while not wanted.items() <= (await around.experience.get_state()).items():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("steps", [1, 4])
async def test_a_step_whose_end_was_not_told_to_the_store_is_closed_by_the_next_incarnation(
    tmp_path: Path, store_server: Server, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    class CrashError(Exception):
        pass

    async def close_step(self: ExperienceClient, incarnation: int, step: int) -> None:
        raise CrashError

    async with team(make_job(steps=steps), tmp_path, store_server) as around:
        with monkeypatch.context() as patch:
            patch.setattr(ExperienceClient, "close_step", close_step)
            with pytest.raises(CrashError):
                await around.run()
        assert not (await around.experience.stored(0)).closed
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        assert (await around.experience.stored(steps - 1)).closed


async def test_a_state_from_before_the_last_checkpoints_goes_on_from_the_newest(
    tmp_path: Path, store_server: Server
) -> None:
    """The store forgot its last second, and the checkpoint that it names was pruned in it."""
    job = make_job(checkpoint={"everySteps": 1, "keep": 1})
    async with team(job, tmp_path, store_server) as around:
        await stop_before_the_state(around, step=2)
        before = await around.experience.get_state()
        await stop_before_the_state(around, step=4)
        await around.experience.put_state(await around.experience.take_incarnation(), before)
        assert before["step"] == "1"
        assert before["checkpoint"].endswith("step-00000001")
        kept = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
        assert "step-00000001" not in kept
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
