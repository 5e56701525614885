"""What stands in a job's way: pods that are stuck, volumes, a spec that is not understood."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.controller.seen import a_pod, seen, subject

from flexmarl.controller import seeing
from flexmarl.controller.findings import find
from flexmarl.controller.observed import JobState
from flexmarl.controller.phase import Phase, next_phase
from flexmarl.controller.plan import Wish, plan
from flexmarl.controller.status import next_status

SPEC = subject().job.spec
SCHEDULED = {
    "type": "PodScheduled",
    "status": "True",
    "lastTransitionTime": "1970-01-01T00:16:40Z",
}
CREATING: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}


def manifest(*conditions: dict[str, Any], **state: Any) -> dict[str, Any]:
    """A pod that has a node, whose only container is in this state."""
    containers = [{"name": "main", "state": state}] if state else []
    return {
        "metadata": {"name": "team-trainer-0", "uid": "u"},
        "spec": {"nodeName": "gpu-7"},
        "status": {"phase": "Pending", "conditions": [SCHEDULED, *conditions],
                   "containerStatuses": containers},
    }  # fmt: skip


def test_a_pod_that_does_not_go_is_told_with_its_node() -> None:
    lost = a_pod("trainer", deleting=True, gone_by=900.0, node="gpu-7")
    what = seen(now=970.0, pods=(lost,), orchestrator=JobState.ACTIVE)
    (found,) = find(what)
    assert found.reason == "PodStuck"
    assert "team-trainer-0" in found.message
    assert "if that node is lost, delete its Node object or taint it" in found.message
    assert "gpu-7" in found.message
    for phase in (Phase.RUNNING, Phase.SUSPENDING):
        assert next_status({"phase": "Running"}, what, [found], phase, SPEC)["reason"] == "PodStuck"
    assert find(replace(what, now=950.0)) == []


def test_an_orchestrator_that_does_not_answer_is_told_while_it_runs_and_while_it_saves() -> None:
    leader = a_pod("orchestrator", ready=True, ip="10.0.0.5")
    what = seen(pods=(leader,), orchestrator=JobState.ACTIVE, silence="UNAVAILABLE: no route")
    (found,) = find(what)
    assert found.reason == "OrchestratorSilent"
    assert not found.fatal
    assert "team-orchestrator-0 at 10.0.0.5, port 7070" in found.message
    assert "UNAVAILABLE: no route" in found.message
    assert "NetworkPolicy" in found.message
    for phase in (Phase.RUNNING, Phase.SUSPENDING):
        status = next_status({"phase": "Running"}, what, [found], phase, SPEC)
        assert status["reason"] == "OrchestratorSilent"
    assert find(replace(what, silence="")) == []
    assert find(replace(what, pods=(replace(leader, ready=False),))) == []


def test_a_pod_is_stuck_only_after_its_grace() -> None:
    """The API server's time of deletion is that at which the grace is over."""
    going = manifest()
    going["metadata"]["deletionTimestamp"] = "1970-01-01T00:16:40Z"
    assert seeing.pod(going).gone_by == 1000.0
    assert seeing.pod(manifest()).gone_by == 0


@pytest.mark.parametrize(
    ("made", "since"),
    [
        (manifest(**CREATING), 1000.0),
        (manifest(), 1000.0),
        (manifest(running={}), 0),
        (manifest(waiting={"reason": "CrashLoopBackOff"}), 1000.0),
        (manifest({"type": "PodReadyToStartContainers", "status": "True"}, **CREATING), 0),
        (manifest({"type": "PodReadyToStartContainers", "status": "False"}, **CREATING), 1000.0),
    ],
)
def test_a_pod_whose_node_has_set_nothing_up_for_it_waits_since_it_was_placed(
    made: dict[str, Any], since: float
) -> None:
    assert seeing.pod(made).unstarted_since == since


def test_a_pod_without_a_node_waits_for_no_volume() -> None:
    made = manifest(**CREATING)
    made["status"]["conditions"] = [{**SCHEDULED, "status": "False"}]
    assert seeing.pod(made).unstarted_since == 0


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ('MountVolume.SetUp failed for volume "files" : configmap "x" not found', "create what"),
        ('Multi-Attach error for volume "pvc-1" Volume is already used', "ReadWriteMany"),
        ("rpc error: code = Internal", "see the volume"),
    ],
)
def test_a_volume_that_is_not_mounted_is_told_in_the_words_of_the_node(
    said: str, advice: str
) -> None:
    pod = a_pod("trainer", waiting="ContainerCreating", unstarted_since=1.0, unmounted=said)
    (found,) = find(seen(pods=(pod,)))
    assert found.reason == "VolumeNotMounted"
    assert said in found.message
    assert advice in found.message
    assert not found.fatal


def test_what_a_later_version_makes_of_a_spec_ends_no_job_that_ran() -> None:
    what = seen(problems=("spec.steps: too few",), orchestrator=JobState.ACTIVE)
    assert next_phase(Phase.STARTING, what, find(what)) is Phase.FAILED
    status = next_status({}, what, find(what), Phase.FAILED, SPEC)
    assert (status["reason"], status["message"]) == ("InvalidSpec", "spec.steps: too few")
    ran = replace(what, ran=True)
    assert next_phase(Phase.RUNNING, ran, find(ran)) is Phase.RUNNING
    status = next_status({"phase": "Running"}, ran, find(ran), Phase.RUNNING, SPEC)
    assert status["reason"] == "InvalidSpec"
    accepted = next(one for one in status["conditions"] if one["type"] == "Accepted")
    assert (accepted["status"], accepted["message"]) == ("False", "spec.steps: too few")
    assert plan(status, ran, Phase.RUNNING).wish is Wish.AS_IT_IS
    failed = replace(ran, orchestrator=JobState.FAILED)
    assert next_status({}, failed, find(failed), Phase.FAILED, SPEC)["reason"] == "JobFailed"
