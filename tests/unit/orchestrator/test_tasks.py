from typing import Any

import pytest
from tests.unit.orchestrator.jobs import make_job

from flexmarl.orchestrator.tasks import Tasks
from flexmarl.runtime.errors import InvalidJobError

RECORDS = [{"id": f"t{number}", "who": "p0"} for number in range(24)]


def tasks(records: list[dict[str, Any]] = RECORDS, **spec: Any) -> Tasks:
    return Tasks(make_job(**spec).spec, records)


def line(step: int, **solved: float) -> dict[str, Any]:
    return {
        "step": step,
        "tasks": list(solved),
        "groups": [{"solved": {"p0": (share, 8)}} for share in solved.values()],
    }


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


def test_difficulty_knows_only_what_is_surely_known_when_a_step_begins() -> None:
    some = tasks(pipeline={"difficulty": {}, "maxStaleness": 1})
    lines = [line(0, a=0.5), line(1, b=0.5), line(2, c=0.5)]
    assert set(some.known_before(3, lines)) == {"a", "b"}
    assert set(some.known_before(1, lines)) == set()


def test_difficulty_waits_a_step_longer_where_groups_start_before_a_step_is_trained() -> None:
    some = tasks(pipeline={"difficulty": {}}, workflow={"name": "debate", "participants": "who"})
    lines = [line(0, a=0.5), line(1, b=0.5), line(2, c=0.5)]
    assert some.ahead == 1
    assert set(some.known_before(3, lines)) == {"a", "b"}


def test_difficulty_of_one_agent_or_of_all() -> None:
    mixed = [
        {
            "step": 0,
            "tasks": ["a", "b"],
            "groups": [{"solved": {"p0": (1.0, 4), "p1": (0.0, 4)}}, {}],
        }
    ]
    own = tasks(pipeline={"difficulty": {"agent": "p1"}}).known_before(1, mixed)
    mean = tasks(pipeline={"difficulty": {}}).known_before(1, mixed)
    assert (own["a"].solved, own["a"].failed) == (0, 4)
    assert (mean["a"].solved, mean["a"].failed) == (2, 2)
    assert "b" not in own | mean


def test_participants_are_those_of_the_task() -> None:
    some = tasks(workflow={"name": "solver-verifier", "participants": "who"})
    assert some.participants(some.at((0, 0), 0, {})) == frozenset({"p0"})
    assert tasks().participants(some.at((0, 0), 0, {})) is None


@pytest.mark.parametrize(
    ("value", "says"),
    [("p7", "names 'p7'; the job's agents are p0, p1"), (None, "must list agents, not None")],
)
def test_a_task_with_wrong_participants_is_named(value: Any, says: str) -> None:
    record = {"id": "bad", "who": value}
    some = tasks([record], workflow={"name": "solver-verifier", "participants": "who"})
    with pytest.raises(InvalidJobError, match=f"task bad.*{says}"):
        some.participants(some.at((0, 0), 0, {}))
