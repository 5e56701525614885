"""A suspension that has begun goes to its end, and people hear of what is news."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.unit.controller.seen import a_pod, observations, seen, subject

from flexmarl.controller.findings import find
from flexmarl.controller.observed import Finding, JobState, Observed, Progress, Workload
from flexmarl.controller.phase import FINAL, Phase, next_phase
from flexmarl.controller.plan import Wish, plan
from flexmarl.controller.status import is_news, next_status, phase_of, troubled

SPEC = subject().job.spec


@given(observations, st.booleans())
def test_once_begun_it_ends_without_pods_whatever_is_wished_then(
    what: Observed, suspend: bool
) -> None:
    what = replace(what, suspend=suspend)
    phase = next_phase(Phase.SUSPENDING, what, find(what))
    assume(phase not in FINAL)
    if what.pods or what.workloads:
        assert phase is Phase.SUSPENDING
    else:
        assert phase is (Phase.SUSPENDED if suspend else Phase.STARTING)


def test_a_job_that_is_wanted_again_while_it_saves_starts_again_afterwards() -> None:
    """Its orchestrator rests once it has saved, and would rest for ever."""
    what = seen(
        suspend=True,
        orchestrator=JobState.ACTIVE,
        pods=(a_pod("orchestrator", ready=True),),
        workloads=(Workload("Job", "x", "orchestrator"),),
        progress=Progress("Running", 2),
    )
    status = next_status({"step": 2}, what, [], next_phase(Phase.RUNNING, what, []), SPEC)
    wanted = replace(what, suspend=False)
    phase = next_phase(phase_of(status), wanted, [])
    status = next_status(status, wanted, [], phase, SPEC)
    assert (phase, status["reason"]) == (Phase.SUSPENDING, "SavingState")
    assert "starts again" in status["message"]
    assert plan(status, wanted, phase).save
    rests = replace(wanted, progress=Progress("Running", 2, saved=2))
    phase = next_phase(phase_of(status), rests, [])
    assert plan(next_status(status, rests, [], phase, SPEC), rests, phase).wish is Wish.KEPT
    gone = seen()
    phase = next_phase(phase, gone, [])
    assert phase is Phase.STARTING
    assert plan(next_status(status, gone, [], phase, SPEC), gone, phase).wish is Wish.ALL


def test_an_evaluation_is_no_news_and_a_trouble_is() -> None:
    trains = seen(orchestrator=JobState.ACTIVE, progress=Progress("Running", 2))
    tests = replace(trains, progress=Progress("Evaluating", 2))
    before = next_status({}, trains, [], Phase.RUNNING, SPEC)
    assert is_news({}, before, trouble=troubled(before, []))
    after = next_status(before, tests, [], Phase.RUNNING, SPEC)
    assert after["reason"] == "Evaluating"
    assert not is_news(before, after, trouble=troubled(after, []))
    quota = [Finding("QuotaExceeded", "quota")]
    stuck = next_status(after, tests, quota, Phase.RUNNING, SPEC)
    assert troubled(stuck, quota)
    assert is_news(after, stuck, trouble=True)
    assert not is_news(stuck, stuck, trouble=True)
    assert not is_news(stuck, after, trouble=False)


@given(observations, st.sampled_from(Phase))
def test_every_new_phase_is_news(what: Observed, before: Phase) -> None:
    findings = find(what)
    phase = next_phase(before, what, findings)
    status = next_status({}, what, findings, phase, SPEC)
    news = is_news({"phase": before.value}, status, trouble=troubled(status, findings))
    assert news or phase is before
    assert troubled(status, findings) or phase is not Phase.FAILED
