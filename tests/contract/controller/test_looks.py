"""Looks at jobs of a real API server, whose own controllers make the pods that no node takes."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from tests.contract.controller.bad_jobs import sound
from tests.contract.controller.conftest import World

from flexmarl.controller.apply import UNWATCHED
from flexmarl.controller.metrics import APPLIES
from flexmarl.controller.names import JOB_LABEL, Manifest
from flexmarl.controller.reading import Read
from flexmarl.controller.render import WORKLOADS
from flexmarl.controller.seeing import workload
from flexmarl.controller.troubles import Troubles

KINDS = (*UNWATCHED, *WORKLOADS, "PersistentVolumeClaim")


def job(**spec: Any) -> Manifest:
    made = sound()
    made["spec"] |= {"store": {"url": "redis://store.invalid:6379"}, **spec}
    return made


def applies() -> float:
    (family,) = APPLIES.collect()
    return sum(each.value for each in family.samples if each.name.endswith("_total"))


async def test_a_job_is_made_once_and_then_left_alone(world: World) -> None:
    key = await world.submit(job())
    status = await world.look(key)
    assert (status["phase"], status["reason"]) == ("Starting", "PodsNotReady")
    assert await world.names("StatefulSet") == {
        "tiny-engine-solver",
        "tiny-engine-verifier",
        "tiny-trainer",
    }
    assert await world.names("Deployment") == {"tiny-experience", "tiny-worker"}
    assert await world.names("Job") == {"tiny-orchestrator"}
    before = applies()
    for _ in range(3):
        await world.look(key)
    assert applies() == before


async def test_what_somebody_changes_is_put_back(world: World) -> None:
    key = await world.submit(job())
    await world.look(key)
    at = f"/apis/apps/v1/namespaces/{world.namespace}/statefulsets/tiny-trainer"
    await world.change(at, {"spec": {"replicas": 4}})
    await world.look(key)
    assert (await world.cluster.call("GET", at))["spec"]["replicas"] == 1
    (main,) = (await world.cluster.call("GET", at))["spec"]["template"]["spec"]["containers"]
    spec = {"containers": [{**main, "image": "registry.invalid/mine"}]}
    await world.change(at, {"spec": {"template": {"spec": spec}}})
    await world.look(key)
    (after,) = (await world.cluster.call("GET", at))["spec"]["template"]["spec"]["containers"]
    assert after == main


async def test_what_nobody_watches_is_made_again_after_a_resync(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flexmarl.controller.apply.YOUNG_SECONDS", 0.0)
    key = await world.submit(job())
    await world.look(key)
    where = f"/api/v1/namespaces/{world.namespace}"
    await world.cluster.delete("Service", world.namespace, "tiny-trainers")
    await world.change(f"{where}/configmaps/tiny-job", {"data": {"job.yaml": "other"}})
    for kind in UNWATCHED:
        world.reconciler.compare(kind, await world.cluster.listed(kind, world.namespace))
    await world.look(key)
    assert "tiny-trainers" in await world.names("Service")
    file = await world.cluster.call("GET", f"{where}/configmaps/tiny-job")
    assert json.loads(file["data"]["job.yaml"])["kind"] == "MARLJob"


async def test_a_suspended_job_keeps_its_claim_only(world: World) -> None:
    key = await world.submit(job())
    await world.look(key)
    await world.change(f"{world.path}/tiny", {"spec": {"suspend": True}})
    status = await world.until(key, "Suspended")
    assert status["phase"] == "Suspended"
    left = {kind: await world.names(kind) for kind in KINDS}
    assert {kind for kind, names in left.items() if names} == {"PersistentVolumeClaim"}
    await world.change(f"{world.path}/tiny", {"spec": {"suspend": False}})
    assert (await world.look(key))["phase"] == "Starting"
    assert await world.names("Job") == {"tiny-orchestrator"}


@pytest.mark.parametrize("quota", [{"pods": "0"}, {"requests.cpu": "60m"}])
async def test_a_quota_that_refuses_pods_is_named(world: World, quota: dict[str, str]) -> None:
    await world.limit("little", quota)
    key = await world.submit(job())
    await world.look(key)
    status = await world.until(key, "QuotaExceeded")
    assert "exceeded quota: little" in status["message"]
    assert "raise the quota" in status["message"]


async def test_a_quota_is_found_whatever_kind_of_workload_it_hits(world: World) -> None:
    await world.limit("none", {"pods": "0"})
    key = await world.submit(job())
    await world.look(key)
    lacking: set[str] = set()
    end = time.monotonic() + 60
    while lacking != {*WORKLOADS}:
        assert time.monotonic() < end, lacking
        said = await Troubles(world.cluster, []).failures(world.namespace)
        for kind in WORKLOADS:
            for one in await world.cluster.listed(kind, world.namespace, labels=JOB_LABEL):
                seen = workload(one, time.time() + 60)
                if "exceeded quota" in (seen.trouble or said.get(seen.uid, "")):
                    lacking.add(kind)


async def test_lack_of_room_is_told_in_wanted_and_free_numbers(world: World) -> None:
    node = {"metadata": {"name": "big"}, "spec": {}}
    await world.cluster.call("POST", "/api/v1/nodes", body=node)
    room = {"cpu": "2", "memory": "8Gi", "pods": "9", "nvidia.com/gpu": "3"}
    path = "/api/v1/nodes/big/status"
    await world.change(path, {"status": {"allocatable": room, "capacity": room}})
    pools = [{"name": "fast", "role": "engine", "gpus": 4}]
    made = job(pools=pools)
    for policy in made["spec"]["policies"]:
        policy["pools"] = ["fast"]
    key = await world.submit(made)
    await world.look(key)
    await world.until(key, "PodsNotReady")
    name = await world.pod("engine")
    says = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    }
    at = f"/api/v1/namespaces/{world.namespace}/pods/{name}/status"
    await world.change(at, {"status": {"conditions": [says]}})
    status = await world.look(key)
    assert status["reason"] == "InsufficientCapacity"
    assert "4 nvidia.com/gpu wanted, at most 3 free of 3" in status["message"]
    await world.cluster.call("DELETE", "/api/v1/nodes/big")


async def test_a_template_that_makes_no_pod_is_refused_before_anything_is_made(
    world: World,
) -> None:
    template = {
        "spec": {"containers": [{"name": "main", "image": "x", "imagePullPolicy": "Maybe"}]}
    }
    key = await world.submit(job(roles={"worker": {"template": template}}))
    status = await world.look(key)
    assert (status["phase"], status["reason"]) == ("Failed", "TemplateInvalid")
    assert "imagePullPolicy" in status["message"]
    assert not await world.names("StatefulSet")


async def test_a_deleted_job_leaves_nothing_but_its_claim(world: World) -> None:
    key = await world.submit(job())
    await world.look(key)
    await world.cluster.delete("MARLJob", world.namespace, "tiny")
    await world.gone(*(kind for kind in KINDS if kind != "PersistentVolumeClaim"))
    assert await world.names("PersistentVolumeClaim") == {"tiny-run"}


async def test_one_that_cannot_be_read_goes_after_its_time_with_its_gang(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(_: Manifest) -> Read:
        return Read(None, ("spec.steps: it is none",))

    removed: list[str] = []

    async def remove(manifest: Manifest) -> None:
        removed.append(f"{manifest['apiVersion']}/{manifest['metadata']['name']}")

    monkeypatch.setattr("flexmarl.controller.known.read", unread)
    monkeypatch.setattr(world.cluster, "remove", remove)
    key = await world.submit(job(gang={"kind": "volcano"}))
    for _ in range(2):
        assert (await world.look(key))["reason"] == "InvalidSpec"
    assert removed == ["scheduling.volcano.sh/v1beta1/tiny-job"]
    await world.change(f"{world.path}/tiny", {"spec": {"ttlSecondsAfterFinished": 1}})
    await world.gone("MARLJob", key=key)


async def test_a_job_of_the_same_name_does_not_go_in_its_place(world: World) -> None:
    key = await world.submit(job(activeDeadlineSeconds=1, ttlSecondsAfterFinished=1))
    await world.runs(key)
    await world.until(key, "DeadlineExceeded")
    await world.read()
    await world.cluster.delete("MARLJob", world.namespace, "tiny")
    await world.submit(job())
    await asyncio.sleep(1.5)
    await world.reconciler.look(key)  # which knows the old one
    assert await world.names("MARLJob") == {"tiny"}


async def test_a_job_that_is_over_goes_after_its_time(world: World) -> None:
    key = await world.submit(job(activeDeadlineSeconds=1, ttlSecondsAfterFinished=2))
    await world.runs(key)
    status = await world.until(key, "DeadlineExceeded")
    assert status["phase"] == "Failed"
    await world.gone("MARLJob", key=key)
