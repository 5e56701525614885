"""Pods that their node keeps, loses or does not take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.controller.seen import a_pod, seen, subject

from flexmarl.controller import seeing
from flexmarl.controller.again import AGAIN_SECONDS, next_look
from flexmarl.controller.findings import find
from flexmarl.controller.nodes import UNREADY_SECONDS, doubtful, node
from flexmarl.controller.observed import JobState, Node, Workload
from flexmarl.controller.phase import Phase
from flexmarl.controller.placing import UNSEEN_SECONDS
from flexmarl.controller.status import next_status

SPEC = subject().job.spec
DOWN = Node(ready=False, says="NodeStatusUnknown: Kubelet stopped posting node status.")
WORKERS = Workload("Deployment", "team-worker", "rollout-worker", 2)


def unready(**more: Any) -> Any:
    return a_pod("trainer", **{"node": "gpu-7", "unready_since": 900.0, **more})


def test_a_node_is_what_its_conditions_and_taints_say() -> None:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fine"}
    assert node({"status": {"conditions": [ready]}}).ready
    down = {**ready, "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Stopped."}
    assert node({"status": {"conditions": [down]}}) == Node(False, "NodeStatusUnknown: Stopped.")
    taint = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
    assert node({"spec": {"taints": [taint]}, "status": {"conditions": [down]}}).released
    assert node({}).ready


def test_nodes_are_asked_for_when_their_pods_are_unready_for_long() -> None:
    assert doubtful(seen(pods=(unready(),))) == {"gpu-7"}
    assert doubtful(seen(pods=(unready(unready_since=1000 - UNREADY_SECONDS / 2),))) == set()
    assert doubtful(seen(pods=(unready(unready_since=0),))) == set()
    overdue = unready(unready_since=0, deleting=True, gone_by=900.0)
    assert doubtful(seen(pods=(overdue,))) == {"gpu-7"}


def test_what_is_unready_is_looked_at_again_for_nobody_tells_of_its_node() -> None:
    assert next_look(seen(pods=(unready(),)), same=True, waits=False) == 1000 + AGAIN_SECONDS
    alone = a_pod(unscheduled_since=950.0)
    assert 1000 < next_look(seen(pods=(alone,)), same=True, waits=False) < 1000 + UNSEEN_SECONDS
    assert next_look(seen(pods=(a_pod(),)), same=True, waits=False) == float("inf")


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        (DOWN, "NodeNotReady", "gpu-7 is not ready (NodeStatusUnknown: Kubelet stopped posting"),
        (None, "NodeLost", "gpu-7 is no node any more; Kubernetes removes"),
        (replace(DOWN, released=True), "NodeLost", "gpu-7 is out of service; Kubernetes removes"),
    ],
)
def test_a_node_that_is_down_is_told_by_name_and_state(
    state: Node | None, reason: str, words: str
) -> None:
    what = seen(pods=(unready(),), nodes={"gpu-7": state}, orchestrator=JobState.ACTIVE)
    (found,) = find(what)
    assert (found.reason, found.fatal) == (reason, False)
    assert f"team-trainer-0: {words}" in found.message
    status = next_status({"phase": "Running"}, what, [found], Phase.RUNNING, SPEC)
    assert status["reason"] == reason
    ready = next(one for one in status["conditions"] if one["type"] == "PodsReady")
    assert (ready["status"], ready["reason"]) == ("False", reason)


def test_a_node_that_is_well_is_not_to_blame() -> None:
    assert find(seen(pods=(unready(),), nodes={"gpu-7": Node()})) == []
    assert find(seen(pods=(unready(),))) == []


def test_a_pod_that_stays_says_what_keeps_it() -> None:
    lost = unready(deleting=True, gone_by=900.0)
    (found,) = find(seen(pods=(lost,), nodes={"gpu-7": DOWN}))
    assert found.reason == "PodStuck"
    assert "gpu-7 (NodeStatusUnknown: Kubelet stopped" in found.message
    (found,) = find(seen(pods=(lost,), nodes={"gpu-7": None}))
    assert "gpu-7 is no node any more" in found.message
    assert "kube-controller-manager" in found.message


def failed(reason: str, message: str, **more: Any) -> Any:
    return a_pod(
        "rollout-worker",
        name="team-worker-a",
        phase="Failed",
        node="cpu-1",
        failure=reason,
        failure_message=message,
        failed_at=900.0,
        **more,
    )


@pytest.mark.parametrize(
    ("reason", "message", "told", "advice"),
    [
        (
            "Evicted",
            'Usage of EmptyDir volume "shm" exceeds the limit "1Gi".',
            "Evicted",
            "spec.shm.size",
        ),
        (
            "Evicted",
            "The node was low on resource: ephemeral-storage.",
            "Evicted",
            "spec.cache.claim",
        ),
        ("Evicted", "The node was low on resource: memory.", "Evicted", "requests that hold"),
        ("OutOfnvidia.com/gpu", "Pod was rejected", "PodRejected", "cpu-1 refused team-worker-a"),
        ("UnexpectedAdmissionError", "Allocate failed", "PodRejected", "device plugins"),
        ("NodeShutdown", "Pod was rejected", "PodRejected", "it is made anew"),
    ],
)
def test_a_pod_that_its_node_ended_is_told_until_others_are_ready(
    reason: str, message: str, told: str, advice: str
) -> None:
    pod = failed(reason, message)
    ready = [
        a_pod("rollout-worker", name=f"team-worker-{one}", uid=one, ready=True) for one in "bc"
    ]
    lacking = seen(pods=(pod, ready[0]), workloads=(WORKERS,))
    (found,) = find(lacking)
    assert found.reason == told
    assert message in found.message
    assert advice in found.message
    assert find(seen(pods=(pod, *ready), workloads=(WORKERS,))) == []
    assert find(replace(lacking, now=5000.0)) == []


def test_a_pod_that_has_failed_is_not_waited_for() -> None:
    what = seen(pods=(failed("Evicted", "low"), a_pod("rollout-worker", name="team-worker-b")))
    status = next_status({}, what, [], Phase.STARTING, SPEC)
    assert status["message"] == "waiting for team-worker-b"


def test_a_pod_that_gives_way_says_to_whom_that_happened() -> None:
    going = unready(deleting=True, disrupted=True, disruption="PreemptionByScheduler")
    (found,) = find(seen(pods=(going,)))
    assert found.reason == "Preempted"
    assert "priorityClassName" in found.message
    assert not find(seen(pods=(replace(going, disruption="EvictionByEvictionAPI"),)))


def test_a_pod_is_seen_with_how_it_failed() -> None:
    conditions = [
        {"type": "Ready", "status": "False", "lastTransitionTime": "1970-01-01T00:15:00Z"},
        {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"},
    ]
    made = {
        "metadata": {"name": "team-trainer-0", "uid": "u"},
        "spec": {"nodeName": "gpu-7"},
        "status": {"phase": "Failed", "reason": "Evicted", "message": "low",
                   "conditions": conditions},
    }  # fmt: skip
    pod = seeing.pod(made)
    assert (pod.failure, pod.failure_message, pod.failed_at) == ("Evicted", "low", 900.0)
    assert (pod.disrupted, pod.disruption, pod.unready_since) == (True, "TerminationByKubelet", 0)
    made["status"] = {"phase": "Running", "reason": "", "conditions": conditions}
    pod = seeing.pod(made)
    assert (pod.failure, pod.unready_since) == ("", 900.0)
