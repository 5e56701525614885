"""Which tasks are played: filters and difficulty."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.orchestrator.conftest import QUICK, Team, team
from tests.contract.orchestrator.test_pipeline import at, crash, stale, until
from tests.unit.orchestrator.jobs import make_job

from flexmarl.runtime.errors import JobFailedError, UnavailableError

FILTER = {"filter": {"name": "contrast", "maxRefills": 2}}
OVERLAPS = pytest.mark.parametrize(
    "overlap", [{}, stale(1), stale(1, partialRollout=True)], ids=["strict", "stale", "partial"]
)


@OVERLAPS
async def test_dropped_groups_are_refilled_exactly_as_many(
    tmp_path: Path, store_server: Server, overlap: dict[str, Any]
) -> None:
    async with team(make_job(pipeline=FILTER | overlap), tmp_path, store_server) as around:
        worker = around.workers[0]
        dropped: Counter[tuple[int, int]] = Counter()

        def drops(request: Any) -> bool:
            no = request.task_id in "357" and not request.final
            dropped[at(request)] += no
            return no

        worker.drops = drops
        await around.run()
        assert dropped.total() > 4
        lines = around.lines("metrics")
        assert sum(line["counts"].get("groups-dropped", 0) for line in lines) == dropped.total()
        asked = {(at(r), r.seed): r for r in around.requests}  # again, where an engine was behind
        assert len(asked) == 24 + dropped.total()  # a refill is another group
        for _, groups in around.ledger.trained.items():
            assert sorted(groups) == list(range(6))
        assert all(r.final == (n == 2) for r, n in refills(asked.values()))


def refills(requests: Iterable[Any]) -> list[tuple[Any, int]]:
    """Each request with how many of its place came before."""
    seen: Counter[tuple[int, int]] = Counter()
    found = []
    for request in requests:
        found.append((request, seen[at(request)]))
        seen[at(request)] += 1
    return found


@OVERLAPS
async def test_refills_survive_a_restart(
    tmp_path: Path, store_server: Server, overlap: dict[str, Any]
) -> None:
    job = make_job(pipeline=FILTER | overlap)
    async with team(job, tmp_path, store_server) as around:
        worker = around.workers[0]
        worker.drops = lambda request: at(request) == (1, 2)
        last = asyncio.Event()

        def plays(request: Any) -> None:
            if at(request) == (1, 2) and request.final:
                worker.gates[1, 2] = last

        worker.plays = plays
        run = asyncio.ensure_future(around.run())
        await until(lambda: sum(at(r) == (1, 2) for r in around.requests) == 3)
        await crash(run)
        run = asyncio.ensure_future(around.run())
        await until(lambda: sum(at(r) == (1, 2) for r in around.requests) == 4)
        last.set()  # not before: the worker may not have heard yet that the first call is over
        await run
        asked = [r for r in around.requests if at(r) == (1, 2)]
        assert [r.final for r in asked] == [False, False, True, True]
        assert len({r.task_id for r in asked}) > 1
        assert asked[3].task_id == asked[2].task_id
        assert around.memory.states["p0"].version == 4


@pytest.mark.parametrize("staleness", [1, 2])
async def test_a_place_that_was_stored_and_is_played_again_ends_its_step_as_any(
    tmp_path: Path, store_server: Server, staleness: int
) -> None:
    """The worker stored the group and died before it said so; the trainers are through with it."""
    job = make_job(steps=5, pipeline=FILTER | stale(staleness, partialRollout=True))
    async with team(job, tmp_path, store_server) as around:
        worker = around.workers[0]
        died: list[tuple[int, int]] = []

        def die(place: tuple[int, int]) -> None:
            if place[0] == 1 and not died:
                [draw] = [draw for draw, found in worker.placed.items() if found == place]
                died.append(draw)
                worker.gates[draw] = asyncio.Event()  # it is never whole again
                worker.restart()
                raise UnavailableError("killed")

        worker.on_stored = die
        await around.run()
        _, *again = [r for r in around.requests if at(r) == died[0]]
        assert again
        # No token is newer than its place takes.
        assert {route.version for request in again for route in request.routes} == {1}
        around.assert_every_task_was_trained_once()


async def test_a_filter_that_drops_everything_ends_the_job_with_words(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(steps=9, pipeline=FILTER), tmp_path, store_server) as around:
        around.workers[0].drops = lambda request: True
        with pytest.raises(JobFailedError, match=r"dropped every task of 3 steps in a row"):
            await around.run()
        assert len(around.lines("metrics")) == QUICK.used_up_steps
        assert around.lines("metrics")[0]["counts"]["places-used-up"] == 6


@pytest.mark.parametrize("overlap", [{}, stale(1)], ids=["strict", "stale"])
async def test_difficulty_chooses_the_same_tasks_whenever_the_orchestrator_dies(
    tmp_path: Path, store_server: Server, overlap: dict[str, Any]
) -> None:
    """Between two steps, and when some groups of a step are stored and others are played."""
    job = make_job(steps=7, pipeline={"difficulty": {"candidates": 3}} | overlap)
    kills: dict[str, list[tuple[int, int]]] = {
        "none": [],
        "between": [(3, index) for index in range(6)],
        "within": [(2, 1), (2, 4)],
    }
    chosen = {}
    for name, late in kills.items():
        folder = tmp_path / name
        folder.mkdir()
        async with team(job, folder, store_server) as around:
            worker = around.workers[0]
            worker.reward = lambda request: float(int(request.task_id) % 2)
            if late:
                gates = worker.gates = {place: asyncio.Event() for place in late}
                stored: set[tuple[int, int]] = set()
                worker.on_stored = stored.add
                run = asyncio.ensure_future(around.run())
                step, count = late[0][0], 6 - len(late)
                await until(lambda: set(late) <= set(map(at, around.requests)))  # noqa: B023
                await until(lambda: sum(p[0] == step for p in stored) == count)  # noqa: B023
                await until(lambda: len(around.lines("metrics")) == step)  # noqa: B023
                await crash(run)
                for gate in gates.values():
                    gate.set()
            await around.run()
            assert around.memory.states["p0"].version == 7
            lines = around.lines("metrics")
            chosen[name] = [line["tasks"] for line in lines]
            assert all(group["solved"] for line in lines for group in line["groups"])
    assert chosen["between"] == chosen["none"]
    assert chosen["within"] == chosen["none"]


@OVERLAPS
async def test_difficulty_learns_of_dropped_groups_whatever_dies(
    tmp_path: Path, store_server: Server, overlap: dict[str, Any]
) -> None:
    """The orchestrator dies while a place is played whose first two tasks were dropped."""
    job = make_job(pipeline=FILTER | {"difficulty": {"candidates": 3}} | overlap)
    async with team(job, tmp_path, store_server) as around:
        worker = around.workers[0]
        worker.drops = lambda request: at(request) == (1, 2)
        worker.reward = lambda request: 0.0

        def plays(request: Any) -> None:
            if at(request) == (1, 2) and request.final:
                worker.gates[1, 2] = asyncio.Event()

        worker.plays = plays
        run = asyncio.ensure_future(around.run())
        await until(lambda: sum(at(r) == (1, 2) for r in around.requests) == 3)
        await crash(run)
        worker.plays = lambda request: None  # what was on its way never gets there
        worker.gates.clear()
        await around.run()
        lines = around.lines("metrics")
        places = [
            place for line in lines for place in zip(line["tasks"], line["groups"], strict=True)
        ]
        found = [(task, group["dropped"]) for task, group in places if "dropped" in group]
        asked = [r.task_id for r in around.requests if at(r) == (1, 2)]
        nothing = {"p0": [0.0, 2], "p1": [0.0, 2]}
        assert found == [(asked[2], [{"task": task, "solved": nothing} for task in asked[:2]])]
        assert asked[2] == asked[3]
        assert sum(line["counts"].get("groups-dropped", 0) for line in lines) == 2


@pytest.mark.parametrize("overlap", [{}, stale(1)], ids=["strict", "stale"])
async def test_difficulty_with_a_filter_chooses_the_same_tasks_whenever_the_orchestrator_dies(
    tmp_path: Path, store_server: Server, overlap: dict[str, Any]
) -> None:
    job = make_job(steps=7, pipeline=FILTER | {"difficulty": {"candidates": 3}} | overlap)
    chosen = {}
    for name, late in {"none": None, "killed": (2, 4)}.items():
        folder = tmp_path / name
        folder.mkdir()
        async with team(job, folder, store_server) as around:
            worker = around.workers[0]
            worker.reward = lambda request: float(int(request.task_id) % 2)
            worker.drops = lambda request: int(request.task_id) % 3 == 0
            if late:
                gate = worker.gates[late] = asyncio.Event()
                run = asyncio.ensure_future(around.run())
                await until(lambda: late in map(at, around.requests))  # noqa: B023
                await until(lambda: len(around.lines("metrics")) == late[0])  # noqa: B023
                await crash(run)
                gate.set()
            await around.run()
            lines = around.lines("metrics")
            chosen[name] = [
                (line["tasks"], [group.get("dropped") for group in line["groups"]])
                for line in lines
            ]
    assert any(dropped for _, step in chosen["none"] for dropped in step)
    assert chosen["killed"] == chosen["none"]


async def test_a_draw_keeps_its_task_however_late_it_is_played_again(
    tmp_path: Path, store_server: Server
) -> None:
    """Steps beyond its own are trained meanwhile, and what they say does not count for it."""
    pipeline = {"difficulty": {"candidates": 6}} | stale(1, partialRollout=True)
    late = {(0, index) for index in range(3)}
    async with team(make_job(steps=6, pipeline=pipeline), tmp_path, store_server) as around:
        worker = around.workers[0]
        worker.reward = lambda request: 1.0
        gates = worker.gates = {place: asyncio.Event() for place in late}
        for trained in (1, 2, 3):
            run = asyncio.ensure_future(around.run())
            # Only once that many steps are behind it may a draw of the next but one start.
            await until(lambda: any(r.id.step == trained + 1 for r in around.requests))  # noqa: B023
            await until(lambda: all(asked(around, place) >= trained for place in late))  # noqa: B023
            await crash(run)
        for gate in gates.values():
            gate.set()
        await around.run()
        for place in late:
            assert asked(around, place) == 4
            assert len({r.task_id for r in around.requests if at(r) == place}) == 1


def asked(around: Team, place: tuple[int, int]) -> int:
    return sum(at(request) == place for request in around.requests)


async def test_what_is_known_of_a_group_whose_answer_never_came_is_read_from_the_store(
    tmp_path: Path, store_server: Server
) -> None:
    job = make_job(pipeline={"difficulty": {"candidates": 3}})
    async with team(job, tmp_path, store_server) as around:
        worker = around.workers[0]

        def tear(place: tuple[int, int]) -> None:
            if place == (1, 2):
                raise UnavailableError("the connection broke")

        worker.on_stored = tear
        await around.run(replace(QUICK, answers=0.2))
        assert around.lines("metrics")[1]["groups"][2] == {
            "solved": {"p0": [1.0, 2], "p1": [1.0, 2]}
        }
