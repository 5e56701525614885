from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.orchestrator.jobs import make_job

from flexmarl.data.difficulty import Posterior
from flexmarl.orchestrator.known import Known


def known(ahead: int = 0, **difficulty: Any) -> Known:
    return Known(make_job(pipeline={"difficulty": difficulty}).spec.pipeline.difficulty, ahead)


def line(step: int, **solved: float) -> dict[str, Any]:
    return {
        "step": step,
        "tasks": list(solved),
        "groups": [{"solved": {"p0": (share, 8)}} for share in solved.values()],
    }


def test_difficulty_knows_only_what_is_surely_known_when_a_step_begins() -> None:
    some = known(ahead=1)
    some.learn([line(0, a=0.5), line(1, b=0.5), line(2, c=0.5)], oldest=0)
    assert set(some.before(3)) == {"a", "b"}
    assert set(some.before(1)) == set()


def test_difficulty_of_one_agent_or_of_all() -> None:
    mixed = {
        "step": 0,
        "tasks": ["a", "b"],
        "groups": [{"solved": {"p0": (1.0, 4), "p1": (0.0, 4)}}, {}],
    }
    own, mean = known(agent="p1"), known()
    for some in (own, mean):
        some.learn([mixed], oldest=0)
    assert dict(own.before(1)) == {"a": Posterior(0, 4)}
    assert dict(mean.before(1)) == {"a": Posterior(2, 2)}


def test_what_was_dropped_is_evidence_and_older_than_what_took_its_place() -> None:
    tried = [{"task": "a", "solved": {"p0": (1.0, 8)}}, {"task": "b", "solved": {"p0": (0.0, 8)}}]
    kept = {"solved": {"p0": (0.5, 8)}, "dropped": tried}
    nobody = {"dropped": tried[:1]}  # what took its place could not be played
    some = known(discount=0.5)
    some.learn([{"step": 0, "tasks": ["a", "c"], "groups": [kept, nobody]}], oldest=0)
    assert dict(some.before(1)) == {
        "a": Posterior(0.5 * (0.5 * 8 + 4) + 8, 0.5 * 4),
        "b": Posterior(0, 8),
    }


def test_without_difficulty_nothing_is_kept() -> None:
    some = Known(None, 0)
    some.learn([line(0, a=0.5)], oldest=0)
    assert not some.before(1)


LINES = st.lists(st.dictionaries(st.sampled_from("abcde"), st.floats(0, 1)), max_size=8)


@given(LINES, st.integers(0, 2), st.data())
def test_what_is_carried_on_from_step_to_step_is_what_all_lines_say(
    solved: list[dict[str, float]], ahead: int, data: st.DataObject
) -> None:
    """Whatever was learnt at a time, however long old steps are still asked for."""
    lines = [line(step, **own) for step, own in enumerate(solved)]
    carried, oldest = known(ahead), 0
    for version, each in enumerate([None, *lines]):
        carried.learn([each] if each else [], oldest)
        oldest = data.draw(st.integers(oldest, version))
        for _ in range(data.draw(st.integers(0, 2))):
            carried.learn([each] if each else [], oldest)  # the same again changes nothing
        anew, restarted = known(ahead), known(ahead)
        anew.learn(lines[:version], oldest=0)
        restarted.learn(lines[:version], oldest)
        for step in range(oldest, version + ahead + 1):
            assert dict(carried.before(step)) == dict(anew.before(step))
            assert dict(restarted.before(step)) == dict(anew.before(step))
