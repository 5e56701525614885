from collections.abc import Mapping
from types import MappingProxyType

from tests.unit.orchestrator.jobs import make_job

from flexmarl.orchestrator.choices import FIELDS, Choices
from flexmarl.orchestrator.tasks import Tasks

RECORDS = [{"id": f"t{number}"} for number in range(24)]
EVIDENCE = {"p0": (1 / 3, 3), "p1": (1.0, 2)}


NOTHING: Mapping[str, str] = MappingProxyType({})


def choices(dumped: Mapping[str, str] = NOTHING) -> Choices:
    job = make_job(pipeline={"filter": {"name": "contrast"}, "difficulty": {}})
    return Choices(Tasks(job.spec, RECORDS), dumped)


def test_what_was_dropped_is_known_after_a_restart() -> None:
    before = choices()
    first = before.task((1, 2))
    before.drop((1, 2), EVIDENCE)
    second = before.task((1, 2))
    before.drop((1, 2), {})
    after = choices(before.dump())
    assert after.dropped((1, 2)) == [(first.id, EVIDENCE), (second.id, {})]
    assert after.task((1, 2)) == before.task((1, 2))
    assert after.dropped((1, 3)) == []
    assert after.dump() == before.dump()


def test_a_drop_changes_the_field_of_its_step_alone() -> None:
    some = choices()
    for step in (0, 1, FIELDS, FIELDS + 2):
        some.drop((step, 1), EVIDENCE)
    before = some.dump()
    some.drop((FIELDS, 3), EVIDENCE)
    [(field, text)] = some.dump(FIELDS).items()
    assert text != before[field]
    assert before | {field: text} == some.dump()
    again = choices(some.dump())
    assert all(again.dropped(place) for place in [(0, 1), (FIELDS, 1), (FIELDS, 3)])


def test_without_a_filter_there_is_nothing_to_keep() -> None:
    assert Choices(Tasks(make_job().spec, RECORDS), {}).dump() == {}


def test_what_is_over_is_forgotten() -> None:
    some = choices()
    some.drop((0, 1), EVIDENCE)
    some.drop((1, 1), EVIDENCE)
    some.close(lambda group: group[0] == 0)
    assert not some.dropped((0, 1))
    assert some.dropped((1, 1))
