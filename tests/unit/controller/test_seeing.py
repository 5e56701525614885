"""Which container's end counts as that of its pod."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.controller.seen import document

from flexmarl.controller.cache import Objects
from flexmarl.controller.names import STEPS, Manifest
from flexmarl.controller.observed import JobState
from flexmarl.controller.reading import Read
from flexmarl.controller.seeing import observe, pod


def ended(code: int, minute: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "finishedAt": f"2026-01-01T00:{minute:02}:00Z"}}


def container(name: str, now: Any = None, before: Any = None) -> Manifest:
    states = {"state": now or {"running": {}}, "lastState": before or {}}
    return {"name": name, "restartCount": 1, **states}


def of(*containers: Manifest, first: tuple[Manifest, ...] = ()) -> Manifest:
    return {
        "metadata": {"name": "team-trainer-0", "uid": "1", "labels": {}},
        "spec": {},
        "status": {"initContainerStatuses": [*first], "containerStatuses": [*containers]},
    }


WAITS = {"waiting": {"reason": "CrashLoopBackOff"}}


@pytest.mark.parametrize(
    ("containers", "code"),
    [
        ((container("main"), container("weights")), None),
        ((container("main"), container("weights", before=ended(137, 1))), 137),
        ((container("main", ended(3, 9)), container("weights", before=ended(137, 1))), 3),
        ((container("main", WAITS, ended(3, 1)), container("weights", before=ended(137, 9))), 3),
        # What is beside main ends with it.
        ((container("main", ended(1, 5)), container("weights", ended(143, 6))), 1),
        ((container("main", WAITS, ended(1, 5)), container("weights", before=ended(137, 6))), 1),
        # Main runs again: who failed last.
        ((container("main", before=ended(1, 5)), container("weights", WAITS, ended(137, 6))), 137),
        ((container("main", before=ended(1, 7)), container("weights", before=ended(137, 6))), 1),
    ],
)
def test_the_end_of_a_pod_is_that_of_the_container_to_blame(
    containers: tuple[Manifest, ...], code: int | None
) -> None:
    for order in (containers, containers[::-1]):
        for manifest in (of(*order), of(order[1], first=order[:1])):
            found = pod(manifest).ended
            assert (found.exit_code if found else None) == code


@pytest.mark.parametrize(
    ("notes", "state"),
    [
        ({STEPS: "3"}, JobState.COMPLETE),
        ({STEPS: "2"}, JobState.ABSENT),
        ({STEPS: "10"}, JobState.COMPLETE),
        ({}, JobState.COMPLETE),
    ],
)
def test_who_has_done_fewer_steps_than_are_wanted_has_not_done_the_job(
    notes: dict[str, str], state: JobState
) -> None:
    job = document(steps=3)
    job["metadata"]["uid"] = "1"
    leader = {
        "kind": "Job",
        "metadata": {"name": "team-orchestrator", "uid": "2", "annotations": notes},
        "spec": {},
        "status": {"conditions": [{"type": "Complete", "status": "True"}]},
    }
    there = Objects(job, {("Job", "team-orchestrator"): leader})
    found = observe(there, Read(None, ()), now=1.0, progress=None, findings=())
    assert found.orchestrator is state
