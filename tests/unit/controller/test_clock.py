"""How long a job has run: queued and suspended time is not counted."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.controller.seen import seen, subject

from flexmarl.controller.clock import clock, due, overdue, seconds
from flexmarl.controller.phase import FINAL, Phase
from flexmarl.controller.status import next_status

SPEC = subject().job.spec
BEGIN = seconds("2026-01-01T00:00:00Z")
QUEUED = (Phase.STARTING, Phase.SUSPENDED, Phase.SUSPENDING)
lives = st.lists(st.tuples(st.sampled_from([*QUEUED, Phase.RUNNING]), st.integers(0, 1000)))


def test_a_job_that_never_ran_is_never_overdue() -> None:
    status: dict[str, Any] = {}
    for hour, phase in enumerate(QUEUED * 3):
        what = seen(now=BEGIN + 3600 * hour, deadline=60.0)
        assert not overdue(status, what)
        status = next_status(status, what, [], phase, SPEC)
        assert "startTime" not in status
        assert due(status, what) == float("inf")


@given(lives)
def test_only_time_between_the_first_running_and_a_suspension_counts(
    life: list[tuple[Phase, int]],
) -> None:
    status: dict[str, Any] = {}
    now, spent, runs, suspended = BEGIN, 0, False, False
    for phase, lasts in life:
        status = clock(status, phase, now)
        runs |= phase is Phase.RUNNING
        if phase is Phase.RUNNING:
            suspended = False
        elif phase is not Phase.STARTING:
            suspended = True
        now += lasts
        spent += lasts if runs and not suspended else 0
    left = due(status, seen(now=now, deadline=10_000.0)) - now
    assert left == (10_000 - spent if runs and not suspended else float("inf"))


@given(st.sampled_from(Phase), st.sampled_from(Phase), st.integers(0, 1000))
def test_the_clock_settles(before: Phase, phase: Phase, later: int) -> None:
    known = clock(clock({}, Phase.RUNNING, BEGIN), before, BEGIN)
    once = clock(known, phase, BEGIN + later)
    assert clock(once, phase, BEGIN + later + 50) == once


def test_an_end_while_it_is_suspended_stops_the_clock() -> None:
    status = clock(clock({}, Phase.RUNNING, BEGIN), Phase.SUSPENDED, BEGIN + 10)
    for final in FINAL:
        assert clock(status, final, BEGIN + 40) == {
            "startTime": "2026-01-01T00:00:00Z",
            "pausedSeconds": 30,
        }
