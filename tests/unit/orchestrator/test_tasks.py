from dataclasses import replace
from typing import Any

import pytest
from tests.unit.orchestrator.jobs import make_job

from flexmarl.orchestrator.tasks import Tasks
from flexmarl.runtime.errors import InvalidJobError

RECORDS = [{"id": f"t{number}", "who": "p0"} for number in range(24)]


def tasks(records: list[dict[str, Any]] = RECORDS, **spec: Any) -> Tasks:
    return Tasks(make_job(**spec).spec, records)


def test_a_refill_is_another_task_and_leaves_the_other_places_alone() -> None:
    some = tasks()
    first = [some.at((0, index), 0, {}).id for index in range(6)]
    again = [some.at((0, index), 1 if index == 2 else 0, {}).id for index in range(6)]
    assert [a == b for a, b in zip(first, again, strict=True)] == [
        True,
        True,
        False,
        True,
        True,
        True,
    ]
    assert some.at((0, 2), 1, {}) == some.at((0, 2), 1, {})
    assert len({some.at((0, 2), refill, {}).id for refill in range(8)}) > 4


def test_refills_take_every_task_alike() -> None:
    some = tasks()
    refilled = [some.at((step, index), 1, {}).id for step in range(4) for index in range(6)]
    assert sorted(refilled) == sorted(record["id"] for record in RECORDS)


def test_each_task_is_a_candidate_once_per_epoch() -> None:
    some = tasks(pipeline={"difficulty": {"candidates": 3}})
    chosen = [some.at((0, index), 0, {}).id for index in range(6)]
    assert len(set(chosen)) == 6


def test_difficulty_waits_a_step_longer_where_groups_start_before_a_step_is_trained() -> None:
    some = tasks(pipeline={"difficulty": {}}, workflow={"name": "debate", "participants": "who"})
    assert some.ahead == 1
    assert tasks(pipeline={"difficulty": {}, "maxStaleness": 1}).ahead == 1


def test_participants_are_those_of_the_task() -> None:
    some = tasks(workflow={"name": "solver-verifier", "participants": "who"})
    assert some.participants(some.at((0, 0), 0, {})) == frozenset({"p0"})
    assert tasks().participants(some.at((0, 0), 0, {})) is None


def test_a_held_out_task_may_leave_its_participants_unsaid() -> None:
    some = tasks(workflow={"name": "solver-verifier", "participants": "who"})
    task = some.at((0, 0), 0, {})
    assert some.tested(task) == frozenset({"p0"})
    rest = {name: value for name, value in task.record.items() if name != "who"}
    assert some.tested(replace(task, record=rest)) is None
    with pytest.raises(InvalidJobError, match="no agent"):
        some.tested(replace(task, record=rest | {"who": "nobody"}))


@pytest.mark.parametrize(
    ("value", "says"),
    [("p7", 'names "p7", which is no agent; p0 or p1'), (None, "nothing in its field .*must list")],
)
def test_a_task_with_wrong_participants_is_named(value: Any, says: str) -> None:
    record = {"id": "bad", "who": value}
    some = tasks([record], workflow={"name": "solver-verifier", "participants": "who"})
    with pytest.raises(InvalidJobError, match=f"task bad.*{says}"):
        some.participants(some.at((0, 0), 0, {}))
