"""Where pods are placed when nodes differ: advertised devices, a node that only exists."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from .jobs import Job, once
from .kube import Kubernetes
from .specs import TASKS, agent, idle, policy, team
from .stage import Stage

SHELF = "flexmarl.io/e2e-shelf"
GPU = "nvidia.com/gpu"
GPUS = 3
ELSEWHERE = "e2e-elsewhere"
NAMES = ("ada", "ben", "cem", "dia")
STEPS = 12


@contextmanager
def shelves(cluster: Kubernetes) -> Iterator[str]:
    """A node with three devices; one of another label, which has more of all and runs nothing."""
    node = cluster.node()
    if GPU in cluster.get("", "node", node)["status"]["capacity"]:
        pytest.skip(f"{node} has devices of its own")
    cluster.kubectl("label", "node", node, f"{SHELF}=near")
    cluster.advertise(node, {GPU: GPUS})
    far = {"name": ELSEWHERE, "labels": {SHELF: "far"}}
    spec = {"taints": [{"key": SHELF, "effect": "NoSchedule"}]}  # else others' pods go there, too
    cluster.apply("default", {"apiVersion": "v1", "kind": "Node", "metadata": far, "spec": spec})
    cluster.advertise(ELSEWHERE, {GPU: 8, "pods": 100, "cpu": 64, "memory": 1 << 40})
    try:
        yield node
    finally:
        cluster.kubectl("delete", "node", ELSEWHERE)
        cluster.kubectl("label", "node", node, f"{SHELF}-")
        paths = [f"/status/{kind}/{GPU.replace('/', '~1')}" for kind in ("capacity", "allocatable")]
        patch = json.dumps([{"op": "remove", "path": path} for path in paths])
        arguments = ("--subresource=status", "--type=json", "-p", patch)
        cluster.kubectl("patch", "node", node, *arguments)


def pool(name: str, role: str, count: int) -> dict[str, Any]:
    """Its pods bear the taint of the other node: only the selector keeps them from it."""
    return {
        "name": name,
        "role": role,
        "gpus": 1,
        "nodeSelector": {SHELF: "near"},
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
        "min": count,
        "max": count,
    }


def elsewhere() -> dict[str, Any]:
    """A team of which only one engine starts, in a pool of the node that runs nothing."""
    far = pool("far", "engine", 1) | {"nodeSelector": {SHELF: "far"}}
    far["template"] = {"spec": {"terminationGracePeriodSeconds": 0}}  # nobody there ends it
    spec = idle()
    del spec["roles"]["engine"]
    for one in spec["policies"]:
        one["pools"] = ["far"]
    return spec | {"pools": [far]}


@pytest.mark.long
def test_four_policies_share_two_slots_and_an_engine_on_the_nodes_of_their_pools(
    stage: Stage,
) -> None:
    pools = [pool("slots", "trainer", 2), pool("engines", "engine", 1)]
    spec = team(
        STEPS,
        policies=[policy(name, pools=["slots", "engines"]) for name in NAMES],
        agents=[agent(name) for name in NAMES],
        workflow={"name": "debate", "config": {"rounds": 1}},
        pools=pools,
        balancing={"hysteresisSeconds": 0.1},
        pipeline={},
    )
    job, other = stage.job(), stage.job("other")
    with shelves(stage.cluster) as node:
        job.submit(spec)
        other.submit(elsewhere())
        other.until(lambda: _devices(other) == {"engine": [ELSEWHERE]}, "it is placed", 60)
        other.delete()
        job.trains(1)
        assert _devices(job) == {"trainer": [node] * 2, "engine": [node]}
        assert [(one["name"], one["ready"]) for one in job.status()["pools"]] == [
            ("slots", 2),
            ("engines", 1),
        ]
        assert [one["name"] for one in job.status()["policies"]] == list(NAMES)
        job.change(pools=[pools[0], {**pools[1], "min": 2, "max": 2}])
        says = f"1 {GPU} wanted, 0 free of {GPUS}"  # once nodes were counted anew
        lacking = job.until(lambda: says in job.status().get("message", ""), says, 60)
        assert lacking["reason"] == "InsufficientCapacity"
        stage.cluster.advertise(node, {GPU: GPUS + 1})
        job.until(lambda: job.status()["pools"][1]["ready"] == 2, "the pool has grown")
        assert _devices(job) == {"trainer": [node] * 2, "engine": [node] * 2}
        job.completes()
    once(job, STEPS, TASKS)
    trained = [set(line["policies"]) for line in job.files["metrics"]]
    assert trained == [set(NAMES)] * STEPS


def test_a_trainer_on_its_nodes_network_trains_where_the_namespace_lets_it(stage: Stage) -> None:
    cluster, job = stage.cluster, stage.job()
    job.submit(team(STEPS, network={"hostNetwork": True}))
    lacking = job.until(lambda: job.status().get("reason") == "PodSecurity", "it is refused", 90)
    assert "host namespaces (hostNetwork=true)" in lacking["message"]
    label = "pod-security.kubernetes.io/enforce=privileged"
    cluster.kubectl("label", "namespace", job.namespace, label, "--overwrite")
    job.trains(1)
    [trainer], [engine, _] = job.pods("trainer"), job.pods("engine")
    assert trainer["status"]["podIP"] == trainer["status"]["hostIP"]
    assert engine["status"]["podIP"] != engine["status"]["hostIP"]
    job.completes()
    once(job, STEPS, TASKS)


def _devices(job: Job) -> dict[str, list[str]]:
    """Role -> nodes of its pods that hold a device."""
    found: dict[str, list[str]] = {}
    for pod in job.pods():
        held = [one.get("resources", {}).get("limits", {}) for one in pod["spec"]["containers"]]
        if any(GPU in limits for limits in held):
            role = pod["metadata"]["labels"]["flexmarl.io/role"]
            found.setdefault(role, []).append(pod["spec"].get("nodeName", ""))
    return found
