"""The controller as the chart's ServiceAccount, through a job's life on an API server with RBAC.

It may do everything that it asks for, and has no right that it never uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.chart.conftest import program
from tests.contract.chart.helm import NAMESPACE
from tests.contract.chart.test_rights import Right, bound, rights
from tests.contract.controller.bad_jobs import sound
from tests.contract.controller.conftest import CRDS, IMAGES, World

from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.cache import Key
from flexmarl.controller.cluster import Cluster, RefusedError, connection
from flexmarl.controller.process import Controller, identified
from flexmarl.controller.reconcile import Reconciler
from flexmarl.controller.settings import ControllerSettings
from flexmarl.controller.watching import RESOURCES

ACCOUNT = "demo-flexmarl"
UNSEEN = {("flexmarl.io", "marljobs/finalizers", "update")} | {
    (version.rpartition("/")[0], plural, "watch") for version, plural in RESOURCES.values()
}
"""What kopf asks for itself, and what some clusters ask for of who sets an owner."""
GANGS = "scheduling.x-k8s.io"
VERBS = {"PATCH": "patch", "POST": "create", "DELETE": "delete"}


class Recorded(Cluster):
    """Remembers the rights that each request asked for, and which were lacking."""

    def __init__(self, api: Any) -> None:
        super().__init__(api)
        self.asked: set[Right] = set()
        self.lacking: list[str] = []

    async def _raw(self, method: str, at: str, **more: Any) -> bytes:
        self.asked |= needed(method, at, more.get("content", ""))
        try:
            return await super()._raw(method, at, **more)
        except RefusedError as error:
            if error.status == 403 and "cannot" in error.message:
                self.lacking.append(error.message)
            raise


def needed(method: str, at: str, content: str) -> set[Right]:
    _, root, *way = at.split("/")
    group = way[0] if root == "apis" else ""
    way = way[2:] if group else way[1:]
    if way[0] == "namespaces" and len(way) > 2:
        way = way[2:]
    plural, name, below = (*way, "", "")[:3]
    resource = f"{plural}/{below}" if below else plural
    found = {(group, resource, VERBS.get(method) or ("get" if name else "list"))}
    if "apply-patch" in content and not below:  # it creates what is not there
        found.add((group, resource, "create"))
    return found


@pytest.fixture
async def granted(world: World) -> set[Right]:
    """What the chart grants to serve the namespace, granted."""
    manifests = program("helm4").render({"watch.namespaces": [world.namespace]})
    roles = bound(manifests, ACCOUNT)
    names = {role["metadata"]["name"] for role in roles}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await world.cluster.call("POST", "/api/v1/namespaces", body=body)
    for one in manifests:
        if "Role" in one["kind"] and one["metadata"]["name"] in names:
            inside = one["metadata"].get("namespace")
            where = f"/namespaces/{inside}" if inside else ""
            at = f"/apis/rbac.authorization.k8s.io/v1{where}/{one['kind'].lower()}s"
            await world.cluster.call("POST", at, body=one)
    return rights(roles)


@pytest.fixture
async def cluster(kubeconfig: Path) -> AsyncIterator[Recorded]:
    """The same API server for the controller's account."""
    async with connection(str(kubeconfig)) as api:
        api.default_headers["Impersonate-User"] = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
        yield Recorded(api)


async def test_its_rights_are_those_that_the_life_of_jobs_takes(
    world: World, cluster: Recorded, granted: set[Right]
) -> None:
    settings = ControllerSettings(images=IMAGES, namespaces=[world.namespace], namespace=NAMESPACE)
    await define_gangs(world)
    async with Orchestrators() as asker:

        def started() -> Reconciler:
            return Reconciler(settings, cluster, world.cache, asker)

        stored = settings.model_copy(update={"store_url": "redis://store.invalid"})
        assert (await identified(stored, cluster)).installation_uid
        world.reconciler = started()
        key = await world.submit(_job(gang={"kind": "coscheduling"}, ttlSecondsAfterFinished=5))
        await world.look(key)
        await _lacks_room(world, key)
        await Controller(settings, cluster, asker).fill()
        world.reconciler = started()
        await world.look(key)
        await world.change(f"{world.path}/tiny", {"spec": {"suspend": True}})
        await world.until(key, "Suspended")
        await world.change(f"{world.path}/tiny", {"spec": {"suspend": False}})
        await _ends_hopelessly(world, key)
        await world.gone("MARLJob", key=key)
        await _lacks_quota(world, cluster)
    assert cluster.lacking == []
    assert _gangs_alike(granted) - _gangs_alike(cluster.asked) == UNSEEN


def _job(**spec: Any) -> dict[str, Any]:
    made = sound()
    made["spec"] |= {"store": {"url": "redis://store.invalid:6379"}, **spec}
    return made


def _gangs_alike(found: set[Right]) -> set[Right]:
    """Three schedulers have the same kind."""
    return {("*" if what == "podgroups" else group, what, verb) for group, what, verb in found}


async def define_gangs(world: World) -> None:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"}
    version = {"name": "v1alpha1", "served": True, "storage": True}
    body = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{GANGS}"},
        "spec": {
            "group": GANGS,
            "names": {**names, "listKind": "PodGroupList"},
            "scope": "Namespaced",
            "versions": [{**version, "schema": {"openAPIV3Schema": anything}}],
        },
    }
    try:
        await world.cluster.call("POST", CRDS, body=body)
    except RefusedError as error:
        if error.status != 409:
            raise
    async with asyncio.timeout(30):
        while True:
            try:
                at = f"/apis/{GANGS}/v1alpha1/namespaces/{world.namespace}/podgroups"
                await world.cluster.call("GET", at)
                return
            except RefusedError:
                await asyncio.sleep(0.1)


async def _lacks_room(world: World, key: Key) -> None:
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient cpu.",
    }
    await _says(world, await world.pod("engine"), {"conditions": [said]})
    await world.until(key, "InsufficientCapacity")


async def _ends_hopelessly(world: World, key: Key) -> None:
    await world.look(key)
    ended = {"terminated": {"exitCode": 3, "reason": "Error", "message": "no such workflow"}}
    container = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    states = [{**container, "state": ended}]
    await _says(world, await world.pod("rollout-worker"), {"containerStatuses": states})
    await world.until(key, "ProcessFailed")


async def _lacks_quota(world: World, cluster: Recorded) -> None:
    """A job whose claim is there already."""
    claim = {
        "metadata": {"name": "mine"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    at = f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims"
    await world.cluster.call("POST", at, body=claim)
    await world.limit("none", {"pods": "0"})
    key = await world.submit(_job(checkpoint={"claim": {"name": "mine"}}))
    await world.look(key)
    await world.until(key, "QuotaExceeded")
    async with asyncio.timeout(60):
        while ("", "events", "list") not in cluster.asked:
            await world.look(key)


async def _says(world: World, pod: str, status: dict[str, Any]) -> None:
    at = f"/api/v1/namespaces/{world.namespace}/pods/{pod}/status"
    await world.change(at, {"status": status})
