"""How often a step asks the store, which has groups to move meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.orchestrator.conftest import QUICK, team
from tests.contract.orchestrator.test_pipeline import stale
from tests.unit.orchestrator.jobs import make_job

from flexmarl.experience.store import Store

CALLS = ("put_state", "get_state", "stored", "close_step")
STEPS = 4
RARELY = replace(QUICK, confirm=60)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """By name: those that reach the store."""
    counted = Counter[str]()
    for name in CALLS:
        monkeypatch.setattr(Store, name, _counting(counted, name, getattr(Store, name)))
    return counted


def _counting(
    counted: Counter[str], name: str, call: Callable[..., Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    async def counting(*args: Any, **more: Any) -> Any:
        counted[name] += 1
        return await call(*args, **more)

    return counting


async def test_a_drop_writes_what_was_dropped_of_its_step_alone(
    tmp_path: Path, store_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[set[str]] = []
    put = Store.put_state

    async def put_state(self: Store, incarnation: int, fields: Mapping[str, str]) -> None:
        written.append(set(fields))
        await put(self, incarnation, fields)

    monkeypatch.setattr(Store, "put_state", put_state)
    filter_ = {"filter": {"name": "contrast", "maxRefills": 2}}
    job = make_job(steps=STEPS, pipeline=filter_ | stale(2, partialRollout=True))
    async with team(job, tmp_path, store_server) as around:
        around.workers[0].drops = lambda request: request.task_id in "357"
        await around.run(RARELY)
        lines = around.lines("metrics")
    dropped = sum(line["counts"].get("groups-dropped", 0) for line in lines)
    assert dropped > STEPS
    alone = [fields for fields in written if len(fields) == 1]
    assert len(alone) == dropped
    assert all(name.startswith("refills.") for fields in alone for name in fields)
    assert sum("step" in fields for fields in written) == STEPS + 2


@pytest.mark.parametrize("groups", [3, 24])
async def test_a_step_writes_where_the_job_stands_however_many_groups_find_their_place(
    tmp_path: Path, store_server: Server, calls: Counter[str], groups: int
) -> None:
    pipeline = stale(2, partialRollout=True)
    batch = {"tasksPerStep": groups, "groupSize": 2}
    job = make_job(steps=STEPS, batch=batch, pipeline=pipeline)
    async with team(job, tmp_path, store_server) as around:
        await around.run(RARELY)
        around.assert_every_task_was_trained_once()
    per_step = {name: calls[name] / STEPS for name in CALLS}
    assert per_step["put_state"] <= 2 + 2 / STEPS  # is it still ours, and where it stands
    assert per_step["stored"] <= 1
    assert per_step["close_step"] == 1
