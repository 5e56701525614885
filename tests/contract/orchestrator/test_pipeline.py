"""Steps that overlap: how old tokens may be, what waits for what, and that nothing gets lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.orchestrator.conftest import QUICK, team
from tests.unit.orchestrator.jobs import make_job

from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.orchestrator.limits import Limits
from flexmarl.rollout.worker import MOST_EPISODES
from flexmarl.runtime.errors import FullError, UnavailableError

PARTIAL = {"partialRollout": True}


def stale(staleness: int, **pipeline: Any) -> dict[str, Any]:
    return {"maxStaleness": staleness, **pipeline}


def at(request: Any) -> tuple[int, int]:
    return request.id.step, request.id.index


async def until(holds: Callable[[], bool]) -> None:
    """Return once it does; TimeoutError long after it should have."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


async def crash(run: asyncio.Future[None]) -> None:
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_invariant_1_without_staleness_every_group_asks_for_its_steps_version_alone(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        await around.run()
        for request in around.requests:
            for route in request.routes:
                assert route.version == request.id.step
                assert not route.HasField("min_version")
        assert {line["staleness"]["trained"] for line in around.lines("metrics")} == {0}


@pytest.mark.parametrize("staleness", [1, 2])
@pytest.mark.parametrize("partial", [{}, PARTIAL], ids=["fixed", "partial"])
async def test_staleness_stays_within_its_bound_and_every_task_is_trained_once(
    tmp_path: Path, store_server: Server, staleness: int, partial: dict[str, Any]
) -> None:
    job = make_job(steps=6, pipeline=stale(staleness, **partial))
    async with team(job, tmp_path, store_server) as around:  # its trainers check each version
        around.workers[0].seconds = 0.02
        await around.run()
        around.assert_every_task_was_trained_once()
        for request in around.requests:
            for route in request.routes:
                assert route.version - staleness <= route.min_version <= route.version
        for line in around.lines("metrics"):
            assert all(0 <= value <= staleness for value in line["staleness"].values())
        for engine in around.engines.values():
            assert [version for _, version in engine.loads] == list(range(7))


@pytest.mark.parametrize("partial", [{}, PARTIAL], ids=["fixed", "partial"])
async def test_groups_of_as_many_later_steps_as_allowed_are_played_while_a_step_is_trained(
    tmp_path: Path, store_server: Server, partial: dict[str, Any]
) -> None:
    job = make_job(steps=6, pipeline=stale(2, **partial))
    async with team(job, tmp_path, store_server) as around:
        gate = around.trainers[0].gates["p0", 1] = asyncio.Event()
        run = asyncio.ensure_future(around.run())
        await until(lambda: (3, 5) in map(at, around.requests))
        await asyncio.sleep(0.1)
        assert {request.id.step for request in around.requests} == {0, 1, 2, 3}
        gate.set()
        await run
        around.assert_every_task_was_trained_once()
        assert around.lines("metrics")[1]["staleness"]["queued"] <= 2


@pytest.mark.parametrize("partial", [{}, PARTIAL], ids=["fixed", "partial"])
async def test_what_waits_while_the_version_turns_over_is_told_as_old_as_it_is_then(
    tmp_path: Path, store_server: Server, partial: dict[str, Any]
) -> None:
    job = make_job(steps=3, pipeline=stale(1, **partial))
    async with team(job, tmp_path, store_server) as around:
        gate = around.trainers[0].gates["p0", 1] = asyncio.Event()
        late = around.workers[0].gates[2, 0] = asyncio.Event()
        stored: list[tuple[int, int]] = []
        around.workers[0].on_stored = stored.append
        run = asyncio.ensure_future(around.run())
        await until(lambda: sum(step == 2 for step, _ in stored) == 5)
        gate.set()
        await until(lambda: len(around.lines("metrics")) == 2)
        late.set()
        await run
        first, second, last = (line["staleness"] for line in around.lines("metrics"))
        assert first == {"in_flight": 0, "queued": 0, "trained": 0}
        assert second["trained"] == 1
        assert last == {"in_flight": 1, "queued": 1, "trained": 1}


async def test_a_policy_that_trains_slowly_does_not_keep_the_others_from_publishing(
    tmp_path: Path, store_server: Server
) -> None:
    job = make_job(steps=4, pipeline=stale(1))
    async with team(job, tmp_path, store_server) as around:
        gate = around.trainers[1].gates["p1", 0] = asyncio.Event()
        late = around.workers[0].gates[1, 3] = asyncio.Event()
        first = next(iter(around.engines.values()))
        run = asyncio.ensure_future(around.run())
        await until(lambda: ("p0", 1) in first.loads)
        assert not around.lines("metrics")
        gate.set()
        late.set()
        await run
        around.assert_every_task_was_trained_once()


async def test_groups_of_later_steps_go_on_during_an_evaluation_at_one_version(
    tmp_path: Path, store_server: Server
) -> None:
    held_out = {"data": {"uri": "file://held-out.jsonl"}, "everySteps": 2}
    job = make_job(steps=4, eval=held_out, pipeline=stale(1))
    async with team(job, tmp_path, store_server) as around:
        worker = around.workers[0]
        late = worker.gates[2, 3] = asyncio.Event()
        seen: list[bool] = []

        def plays(request: Any) -> None:
            if request.purpose == rollout_pb2.EVAL and request.id.step == 2:
                seen.append((2, 3) in map(at, around.requests) and not late.is_set())
                late.set()

        worker.plays = plays
        await around.run()
        around.assert_every_task_was_trained_once()
        assert seen[0]
        asked = [r for r in around.requests if r.purpose == rollout_pb2.EVAL]
        assert {(r.id.step, route.version) for r in asked for route in r.routes} == {
            (0, 0),
            (2, 2),
            (4, 4),
        }
        assert not any(route.HasField("min_version") for r in asked for route in r.routes)


async def test_places_for_which_the_old_version_will_do_do_not_wait_while_engines_load(
    tmp_path: Path, store_server: Server
) -> None:
    """Two groups at a time, so that some of step 1 are not issued when step 0 is trained."""
    job = make_job(steps=4, pipeline=stale(1))
    async with team(job, tmp_path, store_server) as around:
        worker = around.workers[0]
        loaded = asyncio.Event()
        for engine in around.engines.values():
            engine.gates[1] = loaded
        held = [(1, 0), (1, 1)]
        worker.gates.update({place: asyncio.Event() for place in held})
        loading: list[int] = []
        for engine in around.engines.values():
            engine.on_load = loading.append
        run = asyncio.ensure_future(around.run(replace(QUICK, episodes_in_flight=4)))
        await until(lambda: loading.count(1) == 2)
        assert set(held) <= set(map(at, around.requests))
        for place in held:
            worker.gates[place].set()
        await until(lambda: (1, 5) in map(at, around.requests))
        assert not loaded.is_set()
        loaded.set()
        await run
        around.assert_every_task_was_trained_once()


async def test_without_staleness_groups_wait_for_their_version(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        loaded, loading = asyncio.Event(), list[int]()
        for engine in around.engines.values():
            engine.gates[1] = loaded
            engine.on_load = loading.append
        run = asyncio.ensure_future(around.run())
        await until(lambda: loading.count(1) == 2)
        await asyncio.sleep(0.3)
        assert {request.id.step for request in around.requests} == {0}
        loaded.set()
        await run
        around.assert_trained_as_if_nothing_had_happened()


async def test_an_evaluation_has_room_of_its_own_beside_groups_that_are_held(
    tmp_path: Path, store_server: Server
) -> None:
    """As many as may be in flight for training, and no worker is asked for more than it plays."""
    held_out = {"data": {"uri": "file://held-out.jsonl"}, "everySteps": 2}
    job = make_job(steps=4, eval=held_out, pipeline=stale(1))
    async with team(job, tmp_path, store_server) as around:
        worker = around.workers[0]
        late = [(2, 4), (2, 5)]
        worker.gates.update({place: asyncio.Event() for place in late})
        run = asyncio.ensure_future(around.run(replace(QUICK, episodes_in_flight=4)))
        await until(lambda: [line["step"] for line in around.lines("evals")] == [0, 2])
        assert not any(gate.is_set() for gate in worker.gates.values())
        for gate in worker.gates.values():
            gate.set()
        await run
        around.assert_every_task_was_trained_once()
    assert 2 * Limits().episodes_in_flight <= MOST_EPISODES


async def test_a_straggler_is_trained_in_a_later_step_but_not_later_than_allowed(
    tmp_path: Path, store_server: Server
) -> None:
    job = make_job(steps=5, pipeline=stale(1, **PARTIAL))
    async with team(job, tmp_path, store_server) as around:
        worker = around.workers[0]
        straggler = worker.gates[0, 2] = asyncio.Event()
        run = asyncio.ensure_future(around.run())
        await until(lambda: len(around.lines("metrics")) == 1)  # step 0 did without it
        await until(lambda: sum(place[0] == 1 for place in worker.placed.values()) == 5)
        await asyncio.sleep(0.2)
        assert len(around.lines("metrics")) == 1  # step 1 does not
        straggler.set()
        await run
        around.assert_every_task_was_trained_once()
        assert worker.placed[0, 2][0] == 1
        assert around.lines("metrics")[1]["staleness"]["trained"] == 1


async def test_a_straggler_that_begins_anew_leaves_its_place_to_another(
    tmp_path: Path, store_server: Server
) -> None:
    """It is due a step later then, so the step ends without it."""
    job = make_job(steps=5, pipeline=stale(1, **PARTIAL))
    async with team(job, tmp_path, store_server) as around:
        worker = around.workers[0]
        first, second = asyncio.Event(), asyncio.Event()
        worker.gates[0, 2] = first

        def fail_once(request: Any) -> bool:
            if at(request) == (0, 2) and worker.gates[0, 2] is first:
                worker.gates[0, 2] = second
                raise UnavailableError("its engine went away")
            return False

        worker.drops = fail_once
        run = asyncio.ensure_future(around.run())
        await until(lambda: len(around.lines("metrics")) == 1)  # it begins anew at version 1
        await until(lambda: sum(place[0] == 1 for place in worker.placed.values()) == 5)
        first.set()
        await until(lambda: len(around.lines("metrics")) == 2)
        second.set()
        await run
        around.assert_every_task_was_trained_once()
        assert worker.placed[0, 2][0] == 2


async def test_a_group_may_wait_for_room_at_a_worker_as_long_as_it_takes(
    tmp_path: Path, store_server: Server
) -> None:
    refused = 0

    def plays(request: Any) -> None:
        nonlocal refused
        if refused < 8 and at(request) == (1, 0):
            refused += 1
            raise FullError("groups wait here for their place")

    async with team(make_job(), tmp_path, store_server) as around:
        around.workers[0].plays = plays
        await around.run(replace(QUICK, unreachable=0.5))
        assert refused == 8
        around.assert_trained_as_if_nothing_had_happened()
        assert (
            sum(line["counts"].get("groups-given-up", 0) for line in around.lines("metrics")) == 0
        )


async def test_a_group_may_take_longer_than_its_episodes_and_rewards(
    tmp_path: Path, store_server: Server
) -> None:
    """Rewards wait for each other, and groups for room in the store."""
    workflow = {"name": "solver-verifier", "timeout": 0.01}
    job = make_job(workflow=workflow, reward={"name": "exact-match", "timeout": 0.01}, steps=1)
    async with team(job, tmp_path, store_server) as around:
        around.workers[0].seconds = 0.5
        await around.run()
        assert len(around.requests) == 6
        around.assert_trained_as_if_nothing_had_happened()
