"""Which version each policy is at stays told: by the orchestrator, and when nobody says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.controller.seen import document, seen, subject

from flexmarl.controller.observed import JobState, Observed, Progress
from flexmarl.controller.phase import FINAL, Phase
from flexmarl.controller.status import next_status

PLAIN = document(steps=9)
PLAIN["spec"]["policies"][1]["training"] = {"algorithm": "none"}
PHASES = st.sampled_from(["Starting", "Running"])
SPEC = subject(PLAIN).job.spec
RUNS = seen(orchestrator=JobState.ACTIVE, progress=Progress("Running", step=4))


def versions(status: dict[str, Any]) -> list[int | None]:
    return [one.get("version") for one in status["policies"]]


def after(what: Observed, phase: Phase) -> dict[str, Any]:
    before = next_status({}, RUNS, [], Phase.RUNNING, SPEC)
    assert versions(before) == [4, None]
    return next_status(before, what, [], phase, SPEC)


def test_while_the_orchestrator_is_silent_it_is_the_last_that_was_known() -> None:
    assert versions(after(replace(RUNS, progress=None), Phase.RUNNING)) == [4, None]
    begins = replace(RUNS, progress=Progress("Starting", step=0))
    assert versions(after(begins, Phase.RUNNING)) == [4, None]


def test_at_the_end_it_is_the_final_one() -> None:
    done = seen(orchestrator=JobState.COMPLETE)
    status = after(done, Phase.COMPLETE)
    assert versions(status) == [9, None]
    assert versions(next_status(status, seen(), [], Phase.COMPLETE, SPEC)) == [9, None]
    assert versions(after(seen(orchestrator=JobState.FAILED), Phase.FAILED)) == [4, None]


def test_before_anything_is_known_there_is_none() -> None:
    assert versions(next_status({}, seen(), [], Phase.STARTING, SPEC)) == [None, None]


@given(
    st.lists(
        st.tuples(
            st.none() | st.builds(Progress, PHASES, step=st.integers(0, 9)),
            st.sampled_from([one for one in Phase if one not in FINAL]),
        )
    )
)  # fmt: skip
def test_it_is_the_step_whatever_happens(life: list[tuple[Progress | None, Phase]]) -> None:
    status: dict[str, Any] = {}
    for progress, phase in life:
        what = seen(orchestrator=JobState.ACTIVE, progress=progress)
        status = next_status(status, what, [], phase, SPEC)
        assert versions(status) == [status.get("step"), None]


def test_of_a_job_that_is_not_understood_what_was_known_stays() -> None:
    before = next_status({}, RUNS, [], Phase.RUNNING, SPEC)
    status = next_status(before, RUNS, [], Phase.RUNNING, None)
    assert (status["policies"], status["pools"]) == (before["policies"], before["pools"])
