"""Containers and pods that do not start: a reason, and what to do about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.controller.seen import a_pod, seen

from flexmarl.controller import seeing
from flexmarl.controller.findings import find, refused
from flexmarl.controller.names import Manifest
from flexmarl.controller.observed import Ended, Ends, JobState, Workload
from flexmarl.controller.phase import Phase
from flexmarl.controller.status import next_status

ENDS = {"main": Ends(2, 2)}


@pytest.mark.parametrize(
    ("ended", "reason", "words"),
    [
        (
            Ended(137, "OOMKilled", "step 3\n", "main", "8Gi"),
            "OutOfMemory",
            "its limit is 8Gi; raise limits.memory of main in spec.roles.worker.template",
        ),
        (Ended(137, "OOMKilled", "", "main"), "OutOfMemory", "it has no limit; give limits.memory"),
        (
            Ended(255, "Error", "exec /usr/bin/flexmarl: exec format error"),
            "WrongArchitecture",
            "not for the architecture of arm-3",
        ),
        (
            Ended(137, "Error", "loading", "main", unanswered=1800),
            "StartupTooSlow",
            "did not answer within 1800 s; see its log, and if it only needs longer create the job "
            "anew with a larger spec.roles.worker.startupSeconds",
        ),
        (Ended(1, "Error", "a\nboom\n"), "ContainerRestarting", "boom"),
    ],
)
def test_a_container_that_is_started_again_says_why_it_ended(
    ended: Ended, reason: str, words: str
) -> None:
    pod = a_pod("rollout-worker", waiting="CrashLoopBackOff", ended=ended, ends=ENDS, node="arm-3")
    (found,) = find(seen(pods=(pod,)))
    assert (found.reason, found.fatal) == (reason, False)
    assert "has ended 2 times" in found.message
    assert words in found.message
    beyond, *_ = find(seen(pods=(replace(pod, crashes=1),), limits={"rollout-worker": 0}))
    assert (beyond.reason, beyond.fatal) == ("RestartsExceeded", True)
    assert words in beyond.message


def test_what_ended_a_container_is_told_until_it_is_ready_again() -> None:
    """The first restart comes at once, and what took long then takes as long again."""
    ended = Ended(137, "Error", "", "main", unanswered=1800)
    pod = a_pod(ended=ended, ends={"main": Ends(1, 1)}, phase="Running")
    (found,) = find(seen(pods=(pod,)))
    assert found.reason == "StartupTooSlow"
    assert "has ended once and was restarted: ended by its startup probe" in found.message
    assert find(seen(pods=(replace(pod, ready=True),))) == []
    assert find(seen(pods=(replace(pod, phase="Failed"),))) == []
    assert find(seen(pods=(replace(pod, ended=Ended(1)),))) == []


def test_an_orchestrator_without_memory_says_so_in_the_end() -> None:
    ended = Ended(137, "OOMKilled", "step 3\n", "main", "1Gi")
    what = seen(pods=(a_pod("orchestrator", ended=ended),), orchestrator=JobState.FAILED)
    status = next_status({}, what, [], Phase.FAILED, None)
    assert "its limit is 1Gi" in status["message"]


def test_a_container_that_ends_well_again_and_again_is_beyond_its_restarts() -> None:
    """As one does that is stopped because it does not answer."""
    (found,) = find(seen(pods=(a_pod(crashes=4),)))
    assert (found.reason, found.fatal) == ("RestartsExceeded", True)
    assert "with exit code 0" in found.message


def lived(began: str, over: str, unready: str) -> Manifest:
    """A pod whose main was ended, and since when the pod is not ready."""
    end = {"exitCode": 137, "reason": "Error", "startedAt": began, "finishedAt": over}
    main = {"name": "main", "restartCount": 0, "lastState": {"terminated": end},
            "state": {"waiting": {"reason": "CrashLoopBackOff"}}}  # fmt: skip
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": unready}]
    probe = {"periodSeconds": 1, "failureThreshold": 60}
    limits = {"limits": {"memory": "2Gi"}}
    return {
        "metadata": {"name": "team-engine-0", "uid": "u"},
        "spec": {"containers": [{"name": "main", "startupProbe": probe, "resources": limits}]},
        "status": {"phase": "Running", "conditions": conditions, "containerStatuses": [main]},
    }


@pytest.mark.parametrize(
    ("over", "unready", "unanswered"),
    [
        ("2026-01-01T00:11:05Z", "2026-01-01T00:09:00Z", 60),
        ("2026-01-01T00:11:05Z", "2026-01-01T00:10:00Z", 60),
        ("2026-01-01T00:10:30Z", "2026-01-01T00:09:00Z", 0),  # it crashed by itself
        ("2026-01-01T03:00:00Z", "2026-01-01T03:00:00Z", 0),  # it had been ready
    ],
)
def test_who_never_answered_in_a_whole_life_was_ended_by_its_startup_probe(
    over: str, unready: str, unanswered: int
) -> None:
    ended = seeing.pod(lived("2026-01-01T00:10:00Z", over, unready)).ended
    assert ended is not None
    assert (ended.unanswered, ended.container, ended.memory) == (unanswered, "main", "2Gi")


@pytest.mark.parametrize(
    ("waiting", "message", "reason", "advice"),
    [
        ("ErrImagePull", "no match for platform in manifest", "ImagePullFailed", "architecture of"),
        ("SignatureValidationFailed", "unsigned", "ImagePullFailed", "push the image"),
        (
            "CreateContainerConfigError",
            "couldn't find key url in Secret research/store",
            "SecretMissing",
            "give the Secret what it lacks",
        ),
        ("CreateContainerConfigError", 'configmap "x" not found', "PodMisconfigured", "create the"),
        (
            "RunContainerError",
            'exec: "flexmarl": executable file not found in $PATH',
            "PodMisconfigured",
            "made from FlexMARL's",
        ),
        ("RunContainerError", "exec format error", "PodMisconfigured", "the architecture of"),
        ("CreateContainerError", "no space left", "PodMisconfigured", "see the node"),
    ],
)
def test_what_keeps_a_container_from_starting_is_told_with_what_to_do(
    waiting: str, message: str, reason: str, advice: str
) -> None:
    (found,) = find(seen(pods=(a_pod(waiting=waiting, waiting_message=message),)))
    assert found.reason == reason
    assert message in found.message
    assert advice in found.message


def test_a_sandbox_that_cannot_be_made_is_no_volume() -> None:
    said = 'Failed to create pod sandbox: no runtime for "nvidia" is configured'
    pod = a_pod(unstarted_since=1.0, unmounted=said, node="gpu-7")
    (found,) = find(seen(pods=(pod,)))
    assert found.reason == "SandboxFailed"
    assert "runtimeClassName" in found.message
    assert "gpu-7" in found.message


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("running PreBind plugin: binding volumes: timed out waiting", "ClaimPending"),
        ('persistentvolumeclaim "x" not found', "ClaimPending"),
        ("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated"),
        ("0/2 nodes: 2 node(s) had volume node affinity conflict.", "VolumeElsewhere"),
        ("0/2 nodes: 1 Insufficient cpu, 1 volume node affinity conflict", "InsufficientCapacity"),
        ("0/1 nodes are available: 1 Too many pods.", "InsufficientCapacity"),
        ("0/2: 2 node(s) didn't have free ports for the requested pod ports.", "PortsTaken"),
        (
            "0/2: 2 node(s) had untolerated taint {node.kubernetes.io/disk-pressure: }.",
            "NodesUnavailable",
        ),
        (
            "0/2: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }, 1 node(s) "
            "didn't match Pod's node affinity/selector.",
            "NoMatchingNode",
        ),
        ("0/2: 2 node(s) had untolerated taint {gpu: only}.", "NoMatchingNode"),
        ("0/2 nodes: didn't match pod topology spread constraints", "Unschedulable"),
    ],
)
def test_a_pod_without_a_node_says_what_would_give_it_one(message: str, reason: str) -> None:
    (found,) = find(seen(pods=(a_pod(unschedulable=message, claims=("team-run",)),)))
    assert found.reason == reason


def test_what_somebody_holds_back_is_told_after_what_is_wrong() -> None:
    gated = a_pod(unschedulable="Scheduling is blocked due to non-empty scheduling gates")
    trouble = 'pods "team-worker-7" is forbidden: exceeded quota: few'
    worker = Workload("Deployment", "team-worker", "rollout-worker", trouble=trouble)
    found = find(seen(pods=(gated,), workloads=(worker,)))
    assert [one.reason for one in found] == ["QuotaExceeded", "SchedulingGated"]


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulerError", "SchedulingGated"])
def test_whatever_the_scheduler_calls_it_a_pod_without_a_node_is_told(reason: str) -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "why"}
    made = {
        "metadata": {"name": "team-engine-0", "uid": "u"},
        "spec": {},
        "status": {"phase": "Pending", "conditions": [scheduled]},
    }
    assert seeing.pod(made).unschedulable == "why"


def test_a_pod_that_no_scheduler_looks_at_is_told_with_what_it_may_wait_for() -> None:
    made: dict[str, Any] = {
        "metadata": {
            "name": "team-trainer-0",
            "uid": "u",
            "creationTimestamp": "1970-01-01T00:15:00Z",
        },
        "spec": {
            "schedulerName": "volcano",
            "volumes": [{"name": "run", "persistentVolumeClaim": {"claimName": "team-run"}}],
        },
        "status": {"phase": "Pending"},
    }
    pod = seeing.pod(made)
    assert find(seen(now=950.0, pods=(pod,))) == []
    (found,) = find(seen(now=970.0, pods=(pod,)))
    assert found.reason == "NotScheduled"
    assert "the scheduler volcano has said nothing" in found.message
    assert "the volumes of team-run can be made" in found.message
    made["spec"]["nodeName"] = "cpu-1"
    assert seeing.pod(made).unscheduled_since == 0


@pytest.mark.parametrize(
    ("said", "reason", "advice"),
    [
        ("pods is forbidden: exceeded quota: few, requested: pods=1", "QuotaExceeded", "raise the"),
        (
            'pods "x" is forbidden: failed quota: few: must specify limits.cpu for: main,preflight',
            "LimitsMissing",
            "a LimitRange with defaults",
        ),
        ('violates PodSecurity "restricted:latest": hostPath', "PodSecurity", "namespace's level"),
        (
            'pods "x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi',
            "LimitRange",
            "LimitRange allows",
        ),
        (
            'persistentvolumeclaims "x" is forbidden: maximum storage usage per '
            "PersistentVolumeClaim is 5Gi, but request is 10Gi",
            "LimitRange",
            "LimitRange allows",
        ),
        (
            'Pod "x" is invalid: spec.containers[0].resources.requests: Invalid value: "2Gi": '
            "must be less than or equal to memory limit of 512Mi",
            "LimitRange",
            "LimitRange allows",
        ),
        ('admission webhook "p.example" denied the request: no', "AdmissionDenied", "exception"),
        (
            "ValidatingAdmissionPolicy 'x' with binding 'y' denied request: no",
            "AdmissionDenied",
            "",
        ),
        ("no PriorityClass with name high was found", "CreateFailed", "tried again"),
    ],
)
def test_what_the_api_server_refuses_is_told_with_what_to_do(
    said: str, reason: str, advice: str
) -> None:
    found = refused("StatefulSet team-engine", said)
    assert found.reason == reason
    assert said in found.message
    assert advice in found.message
