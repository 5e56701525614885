"""Phases, status and plans: what is seen decides, and it settles."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.controller.seen import a_pod, document, observations, seen, subject

from flexmarl.controller.capacity import Room, Rooms
from flexmarl.controller.clock import seconds
from flexmarl.controller.findings import find
from flexmarl.controller.observed import (
    Ended,
    JobState,
    Observed,
    Progress,
    Workload,
)
from flexmarl.controller.phase import FINAL, Phase, next_phase
from flexmarl.controller.placing import GANG
from flexmarl.controller.plan import Wish, plan
from flexmarl.controller.seeing import workload
from flexmarl.controller.status import next_status, phase_of

SPEC = subject().job.spec


@given(st.sampled_from(Phase), observations)
def test_a_phase_settles_in_one_step(current: Phase, what: Observed) -> None:
    once = next_phase(current, what, find(what))
    assert next_phase(once, what, find(what)) is once


@given(st.sampled_from(FINAL), observations)
def test_the_end_is_the_end(current: Phase, what: Observed) -> None:
    assert next_phase(current, what, find(what), overdue=True) is current


@given(observations)
def test_a_status_settles_in_one_step(what: Observed) -> None:
    findings = find(what)
    phase = next_phase(Phase.PENDING, what, findings)
    once = next_status({}, what, findings, phase, SPEC)
    again = next_phase(phase_of(once), what, findings)
    assert next_status(once, what, findings, again, SPEC) == once


@given(observations)
def test_reasons_are_words_for_machines(what: Observed) -> None:
    findings = find(what)
    status = next_status({}, what, findings, next_phase(Phase.STARTING, what, findings), SPEC)
    reasons = [status["reason"], *(one["reason"] for one in status["conditions"])]
    assert all(reason.isalpha() for reason in reasons)


@given(observations)
def test_pods_of_a_job_that_ended_go_and_leave_evidence(what: Observed) -> None:
    status = next_status({}, what, [], Phase.FAILED, SPEC)
    todo = plan(status, what, Phase.FAILED, ttl=None)
    assert todo.wish is Wish.KEPT
    assert todo.evidence == bool(what.pods)
    assert not todo.delete_job


def test_restarts_are_counted_once_and_outlive_their_pods() -> None:
    first = next_status({}, seen(pods=(a_pod(restarts=2),)), [], Phase.RUNNING, SPEC)
    assert first["restarts"] == {"engine": 2}
    gone = next_status(first, seen(pods=()), [], Phase.RUNNING, SPEC)
    other = seen(pods=(a_pod(uid="other", restarts=1),))
    back = next_status(gone, other, [], Phase.RUNNING, SPEC)
    assert back["restarts"] == {"engine": 3}
    assert next_status(back, other, [], Phase.RUNNING, SPEC) == back


def test_a_map_that_became_null_is_an_empty_one() -> None:
    before = {"phase": "Running", "restarts": None, "restartsSeen": None}
    status = next_status(before, seen(pods=(a_pod(restarts=1),)), [], Phase.RUNNING, SPEC)
    assert status["restarts"] == {"engine": 1}
    assert "restarts" not in next_status({}, seen(), [], Phase.RUNNING, SPEC)


def test_an_evicted_pod_is_no_restart() -> None:
    evicted = a_pod(restarts=1, disrupted=True)
    assert next_status({}, seen(pods=(evicted,)), [], Phase.RUNNING, SPEC)["restartsTotal"] == 0


def test_a_hopeless_process_ends_the_job_with_its_last_words() -> None:
    pod = a_pod("trainer", ended=Ended(3, "Error", "loading\nthe model has no head\n"))
    what = seen(pods=(pod,), orchestrator=JobState.ACTIVE)
    phase = next_phase(Phase.RUNNING, what, find(what))
    status = next_status({"phase": "Running"}, what, find(what), phase, SPEC)
    assert (status["phase"], status["reason"]) == ("Failed", "ProcessFailed")
    assert "the model has no head" in status["message"]
    assert status["failure"]["pod"] == pod.name
    assert status["failure"]["exitCode"] == 3


def test_an_orchestrator_beyond_its_restarts_says_how_often_it_tried() -> None:
    what = seen(
        pods=(a_pod("orchestrator", ended=Ended(1, "Error", "boom")),),
        orchestrator=JobState.FAILED,
        orchestrator_reason="BackoffLimitExceeded",
        limits={"orchestrator": 2},
    )
    status = next_status({}, what, [], Phase.FAILED, SPEC)
    assert status["reason"] == "RestartsExceeded"
    assert "after 2 restarts: boom" in status["message"]
    assert status["failure"]["role"] == "orchestrator"


def test_the_failure_that_ended_the_job_was_no_restart() -> None:
    failed = [a_pod("orchestrator", name=f"o-{n}", uid=f"{n}", restarts=1) for n in range(3)]
    before = next_status({}, seen(pods=tuple(failed[:2])), [], Phase.RUNNING, SPEC)
    last = seen(pods=tuple(failed), orchestrator=JobState.FAILED)
    status = next_status(before, last, [], Phase.FAILED, SPEC)
    assert status["restarts"] == {"orchestrator": 2}


@pytest.mark.parametrize(
    ("waiting", "message", "reason"),
    [
        ("ImagePullBackOff", "not found", "ImagePullFailed"),
        ("CreateContainerConfigError", 'secret "x" not found', "SecretMissing"),
        ("CrashLoopBackOff", "back-off", "ContainerRestarting"),
    ],
)
def test_a_container_that_does_not_start_has_a_reason(
    waiting: str, message: str, reason: str
) -> None:
    (found,) = find(seen(pods=(a_pod(waiting=waiting, waiting_message=message),)))
    assert found.reason == reason
    assert "team-engine-0" in found.message


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", "InsufficientCapacity"),
        ("0/1 nodes: didn't match Pod's node affinity/selector.", "NoMatchingNode"),
        ("pod has unbound immediate PersistentVolumeClaims", "ClaimPending"),
    ],
)
def test_a_pod_without_a_node_has_a_reason(message: str, reason: str) -> None:
    (found,) = find(seen(pods=(a_pod(unschedulable=message),)))
    assert found.reason == reason


def test_lacking_capacity_is_told_in_numbers() -> None:
    stuck = a_pod(name="e-1", uid="1", unschedulable="1 Insufficient nvidia.com/gpu")
    placed = a_pod(name="e-0", uid="0", node="node1")
    (found,) = find(seen(pods=(placed, stuck)))
    assert "2 pods wanted, 1 placed" in found.message
    assert "nvidia.com/gpu" in found.message


def test_a_gang_that_does_not_fit_is_told_as_what_it_lacks() -> None:
    waiting = f"{GANG}, waiting for minCount pods from a gang to be scheduled"
    gang = [a_pod("trainer", name=f"t-{n}", uid=f"t{n}", unschedulable=waiting) for n in range(3)]
    stuck = a_pod(name="e-1", uid="1", unschedulable="1 Insufficient nvidia.com/gpu")
    (found,) = find(seen(pods=(*gang, stuck)))
    assert found.reason == "InsufficientCapacity"
    assert found.message.startswith("4 pods wanted, 0 placed: no node has enough nvidia.com/gpu")
    assert "suspend the job, lower the pool's min" in found.message
    assert [each.reason for each in find(seen(pods=tuple(gang)))] == ["GangWaiting"]


def test_lacking_capacity_is_told_with_what_is_free_on_nodes_that_match() -> None:
    stuck = a_pod(
        unschedulable="0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
        requests={"nvidia.com/gpu": 2.0},
        node_selector={"gpu": "h100"},
    )
    have, free = {"nvidia.com/gpu": 4.0}, {"nvidia.com/gpu": 1.0}
    nodes = (Room({"gpu": "h100"}, have, free), Room({"gpu": "a10"}, have, have))
    (found,) = find(seen(pods=(stuck,), rooms=Rooms(nodes)))
    assert found.reason == "InsufficientCapacity"
    assert "2 nvidia.com/gpu wanted, 1 free of 4" in found.message


def test_all_that_lacks_is_told() -> None:
    engine = a_pod(
        name="e-0", unschedulable="0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    )
    trainer = a_pod(
        "trainer", name="t-0", unschedulable="0/1 nodes are available: 1 Insufficient memory."
    )
    (found,) = find(seen(pods=(engine, trainer)))
    assert "no node has enough nvidia.com/gpu left for e-0" in found.message
    assert "no node has enough memory left for t-0" in found.message


def test_a_node_that_a_pod_may_not_be_on_has_nothing_free_for_it() -> None:
    stuck = a_pod(unschedulable="1 Insufficient cpu, 2 untolerated taint(s)", requests={"cpu": 4.0})
    taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    nodes = (Room({}, {"cpu": 8.0}, {"cpu": 8.0}, (taint,)), Room({}, {"cpu": 4.0}, {"cpu": 1.0}))
    (found,) = find(seen(pods=(stuck,), rooms=Rooms(nodes)))
    assert "4 cpu wanted, 1 free of 4" in found.message


def test_a_store_that_is_away_is_named_while_its_service_is() -> None:
    words = "Traceback\nthe store does not answer: Error 111 connecting to 10.0.0.1:6379\n"
    gone = a_pod("experience", ended=Ended(1, "Error", words))
    (found,) = find(seen(pods=(gone,)))
    assert found.reason == "StoreUnreachable"
    assert "10.0.0.1:6379" in found.message
    assert not find(seen(pods=(replace(gone, ready=True),)))
    hopeless = a_pod("experience", ended=Ended(3, "Error", "store.url: it evicts"))
    (found,) = find(seen(pods=(hopeless,)))
    assert (found.reason, found.fatal) == ("ProcessFailed", True)


@pytest.mark.parametrize(
    ("kind", "status", "silent"),
    [
        ("StatefulSet", {"replicas": 1}, True),
        ("StatefulSet", {"replicas": 2}, False),
        ("Job", {}, True),
        ("Job", {"active": 1}, False),
        ("Job", {"failed": 1}, False),
    ],
)
def test_a_workload_that_lacks_pods_and_does_not_say_why_is_silent(
    kind: str, status: dict[str, Any], silent: bool
) -> None:
    manifest = {
        "kind": kind,
        "metadata": {"name": "x", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"replicas": 2},
        "status": status,
    }
    made = seconds("2026-01-01T00:00:00Z")
    assert workload(manifest, made + 60).silent is silent
    assert not workload(manifest, made + 1).silent


def test_a_suspended_job_saves_before_its_pods_go() -> None:
    workload = Workload("StatefulSet", "x", "engine", 1)
    pods = (a_pod("orchestrator", ready=True),)
    what = seen(
        suspend=True,
        orchestrator=JobState.ACTIVE,
        pods=pods,
        workloads=(workload,),
        progress=Progress("Running", 2),
    )
    phase = next_phase(Phase.RUNNING, what, [])
    assert phase is Phase.SUSPENDING
    status = next_status({"phase": "Running", "step": 2}, what, [], phase, SPEC)
    todo = plan(status, what, phase)
    assert todo.wish is Wish.AS_IT_IS
    assert todo.save
    late = seen(
        now=1301.0, suspend=True, orchestrator=JobState.ACTIVE, pods=pods, workloads=(workload,)
    )
    assert plan(status, late, phase).wish is Wish.KEPT
    none = seen(suspend=True)
    assert next_phase(phase, none, []) is Phase.SUSPENDED


def test_an_orchestrator_that_finds_no_node_has_nothing_to_save() -> None:
    stuck = a_pod("orchestrator", unschedulable="1 Insufficient cpu")
    what = seen(suspend=True, orchestrator=JobState.ACTIVE, pods=(stuck,))
    status = next_status({"step": 2}, what, [], Phase.SUSPENDING, SPEC)
    assert plan(status, what, Phase.SUSPENDING).wish is Wish.KEPT


def test_a_job_that_has_not_trained_yet_has_nothing_to_save() -> None:
    what = seen(suspend=True, orchestrator=JobState.ACTIVE, pods=(a_pod("orchestrator"),))
    status = next_status({}, what, [], Phase.SUSPENDING, SPEC)
    assert plan(status, what, Phase.SUSPENDING).wish is Wish.KEPT


def test_who_serves_whom_in_a_pool_comes_from_the_orchestrator() -> None:
    plain = document(policies=3, pools=[{"name": "few", "role": "engine", "max": 4}])
    for policy in plain["spec"]["policies"][:2]:
        policy["pools"] = ["few"]
    spec = subject(plain).job.spec
    pods = tuple(
        a_pod(name=f"e{number}", uid=f"u{number}", pool="few", ready=number < 2)
        for number in range(3)
    )
    own = a_pod(name="own", uid="own", policy="policy-2", ready=True)
    workload = Workload("StatefulSet", "team-engine-few", "engine", replicas=3, pool="few")
    what = seen(
        pods=(*pods, own),
        workloads=(workload,),
        progress=Progress(engines={"policy-0": 2, "policy-1": 0, "policy-2": 1}),
    )
    status = next_status({}, what, [], Phase.RUNNING, spec)
    assert status["pools"] == [{"name": "few", "ready": 2, "wanted": 3, "max": 4}]
    assert [one["engines"] for one in status["policies"]] == [2, 0, 1]
    silent = next_status(status, replace(what, progress=None), [], Phase.RUNNING, spec)
    assert [one["engines"] for one in silent["policies"]] == [2, 0, 1]
    gone = next_status(status, seen(), [], Phase.RUNNING, spec)
    assert [one["engines"] for one in gone["policies"]] == [0, 0, 0]


@pytest.mark.parametrize("end", FINAL)
def test_a_job_that_is_over_has_neither_pods_nor_engines(end: Phase) -> None:
    """They are there still when its end is written, and nothing is written after it."""
    plain = document(policies=2, pools=[{"name": "few", "role": "engine", "max": 4}])
    plain["spec"]["policies"][0]["pools"] = ["few"]
    spec = subject(plain).job.spec
    shared, own = a_pod(pool="few", ready=True), a_pod(uid="own", policy="policy-1", ready=True)
    workload = Workload("StatefulSet", "team-engine-few", "engine", replicas=1, pool="few")
    progress = Progress(engines={"policy-0": 1, "policy-1": 1})
    runs = seen(pods=(shared, own), workloads=(workload,), progress=progress)
    before = next_status({}, runs, [], Phase.RUNNING, spec)
    assert [one["engines"] for one in before["policies"]] == [1, 1]
    status = next_status(before, replace(runs, progress=None), [], end, spec)
    assert [one["engines"] for one in status["policies"]] == [0, 0]
    assert status["pools"] == [{"name": "few", "ready": 0, "wanted": 0, "max": 4}]
