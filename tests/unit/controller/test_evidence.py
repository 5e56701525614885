"""Which logs are kept of a job that ended, and how much of each."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.controller.evidence import (
    FAILED_PODS,
    MOST_BYTES,
    MOST_LOGS,
    Log,
    fitted,
    wanted,
)
from flexmarl.controller.names import ROLE_LABEL, Manifest

RUNS: dict[str, Any] = {"running": {}}
WAITS = {"waiting": {"reason": "CrashLoopBackOff"}}
PODS = 300


def ended(code: int = 1, second: int = 0) -> dict[str, Any]:
    at = f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"
    return {"terminated": {"exitCode": code, "finishedAt": at}}


def status(name: str, state: Any, before: Any = None) -> Manifest:
    return {"name": name, "state": state, "lastState": before or {}}


def pod(name: str, role: str, *main: Manifest, first: Any = (), ready: bool = True) -> Manifest:
    return {
        "metadata": {"name": name, "labels": {ROLE_LABEL: role}},
        "status": {
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "initContainerStatuses": [*first],
            "containerStatuses": [*main],
        },
    }


def entries(*pods: Manifest) -> list[str]:
    return [log.entry for log in wanted(pods)]


def test_of_a_container_that_runs_again_the_life_before_is_kept_too() -> None:
    assert entries(
        pod("fine", "engine", status("main", RUNS)),
        pod("again", "engine", status("main", RUNS, ended())),
        pod("waits", "engine", status("main", WAITS, ended(second=9))),
    ) == ["waits.log", "again.log", "again.previous.log", "fine.log"]


def test_what_did_not_start_has_no_log() -> None:
    assert entries(pod("new", "engine", status("main", {"waiting": {}}))) == []


def test_other_containers_are_kept_when_they_failed() -> None:
    first = [status("preflight", ended(75)), status("weights", RUNS)]
    assert entries(pod("x", "engine", status("main", {"waiting": {}}), first=first)) == [
        "x.preflight.log"
    ]
    beside = pod("y", "trainer", status("main", RUNS), status("weights", RUNS, ended(137)))
    assert entries(beside) == ["y.weights.log", "y.weights.previous.log", "y.log"]


def test_of_many_that_failed_those_that_failed_last_are_kept() -> None:
    tries = [pod(f"o{n}", "orchestrator", status("main", ended(second=n))) for n in range(PODS)]
    others = [pod(f"e{n:03}", "engine", status("main", RUNS)) for n in range(PODS)]
    found = entries(*others, *tries)
    assert found[:FAILED_PODS] == [f"o{PODS - 1 - n}.log" for n in range(FAILED_PODS)]
    assert found[FAILED_PODS] == "e000.log"
    assert len(found) == MOST_LOGS


def test_pods_whose_node_may_be_gone_are_asked_last() -> None:
    lost = pod("a", "engine", status("main", RUNS), ready=False)
    lost["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert entries(lost, pod("b", "engine", status("main", RUNS))) == ["b.log", "a.log"]


def logs(count: int, *, failed: bool) -> list[Log]:
    return [Log(f"{failed}-{n}", "main", previous=False, failed=failed) for n in range(count)]


@settings(max_examples=20)
@given(st.integers(0, 9), st.integers(0, 50), st.binary(min_size=1, max_size=9))
def test_it_fits_into_a_config_map_whatever_is_said(bad: int, good: int, said: bytes) -> None:
    everyone = [*logs(bad, failed=True), *logs(good, failed=False)]
    found = fitted(everyone, dict.fromkeys(everyone, said * (MOST_BYTES // len(said))))
    assert sum(len(text.encode()) for text in found.values()) <= MOST_BYTES
    assert len(json.dumps(found)) < 3 << 20


def test_the_ends_are_kept_and_half_of_the_room_is_for_those_that_failed() -> None:
    everyone = [*logs(1, failed=True), *logs(50, failed=False)]
    found = fitted(everyone, dict.fromkeys(everyone, b"x" * MOST_BYTES + b"end"))
    assert len(found["True-0.log"]) == MOST_BYTES // 2
    assert all(text.endswith("end") for text in found.values())
    alone = fitted(everyone[:1], {everyone[0]: b"x" * 2 * MOST_BYTES})
    assert len(alone["True-0.log"]) == MOST_BYTES
