"""When a job is looked at again though nothing happens."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.unit.controller.seen import seen

from flexmarl.controller.again import AGAIN_SECONDS, ROOM_SECONDS, SOON_SECONDS, next_look
from flexmarl.controller.observed import Finding, Observed, Pod, Workload
from flexmarl.controller.placing import UNSEEN_SECONDS

NOW = 1000.0
POD = Pod("team-trainer-0", "1", "trainer", ready=True)
SET = Workload("StatefulSet", "team-trainer", "trainer", replicas=1)


def later(what: Observed, *, same: bool = True, waits: bool = False) -> float:
    return next_look(what, same=same, waits=waits) - NOW


def test_a_job_that_is_as_it_should_be_is_left_alone() -> None:
    what = seen(now=NOW, pods=(POD,), workloads=(SET,))
    assert later(what) == float("inf")
    assert later(what, waits=True) == AGAIN_SECONDS
    assert later(what, same=False) == SOON_SECONDS


@pytest.mark.parametrize(
    ("pod", "workload", "after"),
    [
        ({"deleting": True}, {}, AGAIN_SECONDS),
        ({"unstarted_since": 1.0}, {}, AGAIN_SECONDS),
        ({"unready_since": 1.0}, {}, AGAIN_SECONDS),  # its node may be lost
        ({"unscheduled_since": NOW - 5}, {}, UNSEEN_SECONDS - 4),  # then it is told, and once
        ({"unscheduled_since": NOW - 2 * UNSEEN_SECONDS}, {}, float("inf")),
        ({}, {"lacks": True}, AGAIN_SECONDS),  # after a while it has to be asked why
        ({}, {"trouble": "exceeded quota"}, AGAIN_SECONDS),
        ({"unschedulable": "0/1 nodes are available"}, {}, ROOM_SECONDS),
    ],
)
def test_what_no_watch_tells_of_is_looked_for(
    pod: dict[str, Any], workload: dict[str, Any], after: float
) -> None:
    one, other = dataclasses.replace(POD, **pod), dataclasses.replace(SET, **workload)
    assert later(seen(now=NOW, pods=(one,), workloads=(other,))) == after


def test_what_was_refused_is_tried_again() -> None:
    assert later(seen(now=NOW, findings=(Finding("Refused", ""),))) == AGAIN_SECONDS
