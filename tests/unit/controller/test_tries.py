"""An orchestrator whose preflight waits for something: its Job is made anew before it tires."""

from __future__ import annotations

import pytest
from tests.unit.controller.seen import a_pod, seen

from flexmarl.contracts.preparation import Found, Kind, Report
from flexmarl.controller.observed import Ended, JobState, Observed, Pod
from flexmarl.controller.phase import Phase
from flexmarl.controller.plan import TRY_SECONDS, plan

AWAY = Report([Found("SourceUnreachable", "hub: down", Kind.PASSING)])


def tried(at: float, **what: object) -> Pod:
    """A pod whose preflight has given up for now."""
    how = {"phase": "Failed", "prepared": False, "report": AWAY, "failed_at": at, **what}
    return a_pod("orchestrator", uid=f"{at}", **how)


def of(*pods: Pod, now: float = 1000.0, state: JobState = JobState.ACTIVE) -> Observed:
    return seen(now=now, pods=(*pods, a_pod(ready=True)), orchestrator=state)


def test_a_minute_after_its_last_try_it_is_made_anew() -> None:
    pods = tried(900), tried(1000 - TRY_SECONDS / 2)
    soon = plan({}, of(*pods), Phase.STARTING)
    assert (soon.anew, soon.again) == (False, 1000 + TRY_SECONDS / 2)
    assert plan({}, of(*pods, now=soon.again), Phase.STARTING).anew
    assert plan({}, of(tried(900)), Phase.RUNNING).anew


@pytest.mark.parametrize(
    "pods",
    [
        (),
        (a_pod("orchestrator"),),
        (tried(900), a_pod("orchestrator", uid="tries")),
        (tried(900), a_pod("orchestrator", uid="goes", phase="Failed", deleting=True)),
        # What was counted is not to be forgotten.
        (tried(900), tried(800, prepared=True, report=None, ended=Ended(1))),
        (tried(900), tried(800, report=None, ended=Ended(137))),
    ],
)
def test_it_is_left_alone_while_it_tries_and_once_it_has_crashed(pods: tuple[Pod, ...]) -> None:
    todo = plan({}, of(*pods), Phase.STARTING)
    assert (todo.anew, todo.again) == (False, float("inf"))


def test_what_its_node_did_to_it_is_no_crash() -> None:
    evicted = tried(800, report=None, disrupted=True)
    assert plan({}, of(tried(900), evicted), Phase.STARTING).anew


@pytest.mark.parametrize("phase", [Phase.SUSPENDING, Phase.SUSPENDED, Phase.FAILED])
def test_nothing_is_made_anew_of_a_job_that_is_not_to_run(phase: Phase) -> None:
    at = "2026-01-01T00:00:00Z"
    status = {"completionTime": at, "suspendingSince": at}
    assert not plan(status, of(tried(900)), phase).anew


@pytest.mark.parametrize("state", [JobState.ABSENT, JobState.FAILED, JobState.COMPLETE])
def test_nor_of_a_job_object_that_is_over(state: JobState) -> None:
    assert not plan({}, of(tried(900), state=state), Phase.STARTING).anew
