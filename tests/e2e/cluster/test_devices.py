"""Pools of engines that want the same devices: whose policy has work gets them from the other."""

from __future__ import annotations

import pytest

from .jobs import Job, once
from .kube import slack
from .specs import TASKS, Spec, team
from .stage import Stage

DEVICES = 3
"""Of the node: each pool has one, and there is one more."""
POOLS = ("first", "second")
STEPS = 40
"""Of some three seconds: twice as many as it takes to see the device move."""
SHRINK = 15
"""Seconds: longer than a step, in which a pool may have nothing to play for a while."""


def shared(resource: str, steps: int) -> Spec:
    """Each policy has a pool of its own; the first has all the work until it moves."""
    pools = [
        {"name": name, "role": "engine", "gpus": 1, "gpuResource": resource, "max": DEVICES - 1}
        for name in POOLS
    ]
    spec = team(
        steps,
        pools=pools,
        balancing={"turnsPerEngine": 30, "shrinkSeconds": SHRINK},
        workflow={"entrypoint": "moving:Moving"},
        data={"uri": "gym://chain_sum", "size": steps * TASKS},
    )
    for policy, pool in zip(spec["policies"], POOLS, strict=True):
        policy["pools"] = [pool]
    return spec


def held(job: Job, resource: str) -> dict[str, set[str]]:
    """Pool -> its pods that are on a node with a device."""
    found: dict[str, set[str]] = {pool: set() for pool in POOLS}
    for pod in job.pods("engine"):
        [main] = [one for one in pod["spec"]["containers"] if one["name"] == "main"]
        if pod["spec"].get("nodeName") and main["resources"]["limits"].get(resource):
            found[pod["metadata"]["labels"]["flexmarl.io/pool"]].add(pod["metadata"]["name"])
    return found


@pytest.mark.long
def test_two_pools_give_each_other_a_device_when_the_load_moves_from_policy_to_policy(
    stage: Stage,
) -> None:
    job, resource, steps = stage.job(), "moving.example/gpu", round(STEPS * slack())

    def hold(first: int, second: int) -> bool:
        assert job.status().get("phase") != "Complete", "over before the devices were where they go"
        each = {pool: len(pods) for pool, pods in held(job, resource).items()}
        ready = {one["name"]: one["ready"] for one in job.status().get("pools", ())}
        return each == ready == {"first": first, "second": second}

    with stage.cluster.devices(resource, DEVICES):
        job.submit(shared(resource, steps))
        job.until(lambda: hold(2, 1), "the pool with the work has the third device")
        before = held(job, resource)["second"]
        job.inside(job.pod("rollout-worker"), "touch", "/tmp/moved")
        job.until(lambda: hold(1, 2), "the other pool has it")
        [new] = held(job, resource)["second"] - before
        job.until(lambda: job.sampled(new) > 0, "its new engine works", 60)
        job.completes()
    once(job, steps, TASKS)
