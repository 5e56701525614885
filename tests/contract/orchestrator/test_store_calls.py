"""How often a step asks the store, which has groups to move meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
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
