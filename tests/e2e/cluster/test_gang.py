"""All pods of a job or none, by Kubernetes' own gang scheduling.

Skipped where the API server has no PodGroups of that API: it is an alpha of 1.36, behind the
feature gates GenericWorkload and GangScheduling.
"""

from __future__ import annotations

import pytest

from flexmarl.contracts.cluster import GangKind
from flexmarl.controller.render.gang import API

from .jobs import Job
from .kube import Kubernetes
from .specs import Spec, team
from .stage import Stage

ROOM = 3
"""Devices of the node."""
OTHERS = 4
"""Pods of the job but its engines: orchestrator, worker, experience and trainer."""


def skip_without_gangs(cluster: Kubernetes) -> None:
    api = API[GangKind.NATIVE]
    if "podgroups" not in cluster.kubectl("get", "--raw", f"/apis/{api}", check=False):
        pytest.skip(f"the cluster has no PodGroups of {api}")


def gang(engines: int, resource: str, *, speed: int = 20) -> Spec:
    """The team with so many engines, each of which takes a device; `speed`: tokens per second."""
    pool = {"name": "devices", "role": "engine", "gpus": 1, "gpuResource": resource, "min": engines,
            "max": 8}  # fmt: skip
    spec = team(pools=[pool], gang={"kind": "native"})
    for policy in spec["policies"]:
        policy["pools"] = ["devices"]
        policy["engine"]["scripted"]["tokensPerSecond"] = speed
    return spec


def placed(job: Job) -> list[bool]:
    return [bool(pod["spec"].get("nodeName")) for pod in job.pods()]


def waits_for(job: Job, pods: int, resource: str) -> None:
    """It says what is lacking for so many pods, none of which is on a node."""

    def said() -> bool:
        status = job.status()
        assert not any(placed(job)), status
        words = (f"{pods} pods wanted, 0 placed", resource)
        return status.get("reason") == "InsufficientCapacity" and all(
            word in status["message"] for word in words
        )

    job.until(said, "it says so", 60)


def test_a_job_one_pod_too_large_starts_none_of_its_pods_until_there_is_room_for_all(
    stage: Stage,
) -> None:
    skip_without_gangs(stage.cluster)
    job, resource = stage.job(), "large.example/gpu"
    with stage.cluster.devices(resource, ROOM) as node:
        job.submit(gang(ROOM + 1, resource))
        waits_for(job, OTHERS + ROOM + 1, resource)
        stage.cluster.advertise(node, {resource: ROOM + 1})
        job.completes()


@pytest.mark.long
def test_a_gang_may_be_scaled_suspended_and_started_in_its_new_size(stage: Stage) -> None:
    skip_without_gangs(stage.cluster)
    job, resource = stage.job(), "scaled.example/gpu"
    with stage.cluster.devices(resource, ROOM):
        spec = gang(ROOM, resource, speed=2)
        job.submit(spec)
        done = job.trains(1)
        before = {pod["metadata"]["uid"] for pod in job.pods()}
        job.change(pools=[{**spec["pools"][0], "min": ROOM + 1}])  # the new one waits, alone
        job.until(lambda: placed(job).count(False) == 1, "one more pod is wanted")
        assert before < {pod["metadata"]["uid"] for pod in job.pods()}
        job.change(suspend=True)
        job.reaches("Suspended")
        where = ("-n", job.namespace, "get", "podgroups", "-o", "name")
        job.until(lambda: not job.cluster.kubectl(*where), "the group goes with its pods", 60)
        job.change(suspend=False)
        waits_for(job, OTHERS + ROOM + 1, resource)
        job.change(suspend=True)
        job.reaches("Suspended")
        job.change(pools=[{**spec["pools"][0], "min": ROOM}], suspend=False)
        job.trains(done + 2)
