"""A real API server without a node, and a controller in this process that looks when told to."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flexmarl.contracts.crd import crd
from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.cache import WATCHED, Cache, Key
from flexmarl.controller.cluster import Cluster, RefusedError, connection
from flexmarl.controller.errands import Errand
from flexmarl.controller.names import JOB_LABEL, ROLE_LABEL, Manifest
from flexmarl.controller.reconcile import Reconciler
from flexmarl.controller.settings import ControllerSettings

IMAGES = dict.fromkeys(("slim", "trainer", "vllm"), "registry.invalid/flexmarl")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PAUSE = 0.05
"""Seconds between two looks at what the API server's own controllers have still to do."""


@dataclass
class World:
    """A namespace of its own, and what looks at its jobs."""

    cluster: Cluster
    namespace: str
    cache: Cache
    reconciler: Reconciler

    @property
    def path(self) -> str:
        return f"/apis/flexmarl.io/v1alpha1/namespaces/{self.namespace}/marljobs"

    async def submit(self, job: Manifest) -> Key:
        job["metadata"]["namespace"] = self.namespace
        await self.cluster.call("POST", self.path, body=job)
        return Key(self.namespace, job["metadata"]["name"])

    async def change(self, path: str, body: Manifest) -> Manifest:
        content = "application/merge-patch+json"
        return await self.cluster.call("PATCH", path, body=body, content=content)

    async def read(self) -> None:
        """Everything, as the watches would bring it."""
        for kind in WATCHED:
            labels = "" if kind == "MARLJob" else JOB_LABEL
            self.cache.begin()
            found = await self.cluster.listed(kind, self.namespace, labels=labels)
            self.cache.compare(kind, found)
            for one in found:
                self.cache.mend(kind, one)

    async def look(self, key: Key) -> dict[str, Any]:
        """At everything, also at what looks have had done beside them; the status then."""
        await self.read()
        await self.reconciler.look(key)
        if await self.errands():
            await self.reconciler.look(key)
        job = await self.cluster.call("GET", f"{self.path}/{key.name}")
        status: dict[str, Any] = job.get("status", {})
        return status

    async def errands(self) -> bool:
        """Do what looks have left to do; whether it names a job."""
        named: list[Key] = []
        errands = self.reconciler.errands
        working = [asyncio.create_task(errands.work(kind, named.append)) for kind in Errand]
        while errands.busy:  # noqa: ASYNC110
            await asyncio.sleep(PAUSE / 10)
        for task in working:
            task.cancel()
        await asyncio.wait(working)
        return bool(named)

    async def until(self, key: Key, reason: str, seconds: float = 60) -> dict[str, Any]:
        """Look until the job gives that reason."""
        end = time.monotonic() + seconds
        while (status := await self.look(key)).get("reason") != reason:
            assert time.monotonic() < end, status
            await asyncio.sleep(PAUSE)
        return status

    async def runs(self, key: Key, ip: str = "127.0.0.1") -> dict[str, Any]:
        """Say of every pod that it is ready, until the job is Running. `ip`: of all of them."""
        end = time.monotonic() + 60
        while (status := await self.look(key)).get("phase") != "Running":
            assert time.monotonic() < end, status
            for name in await self.names("Pod"):
                await self.says(name, running(), ip=ip)
            await asyncio.sleep(PAUSE)
        return status

    async def says(
        self,
        pod: str,
        *containers: Manifest,
        first: Sequence[Manifest] = (),
        phase: str = "Running",
        ip: str = "",
    ) -> None:
        """A kubelet's words on a pod, which is ready when it runs."""
        ready = "True" if phase == "Running" else "False"
        status: Manifest = {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [*containers],
            "initContainerStatuses": [*first],
        }
        if ip:
            status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
        at = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/status"
        await self.change(at, {"status": status})

    async def limit(self, name: str, hard: Mapping[str, str]) -> None:
        """By a ResourceQuota."""
        where = f"/api/v1/namespaces/{self.namespace}/resourcequotas"
        body = {"metadata": {"name": name}, "spec": {"hard": dict(hard)}}
        await self.cluster.call("POST", where, body=body)

    async def gone(self, *kinds: str, key: Key | None = None, seconds: float = 60) -> None:
        """Wait until there is none; `key`: look at that job meanwhile."""
        end = time.monotonic() + seconds
        while left := [kind for kind in kinds if await self.names(kind)]:
            assert time.monotonic() < end, left
            await asyncio.sleep(PAUSE)
            if key is not None:
                await self.read()
                await self.reconciler.look(key)
                await self.errands()

    async def pod(self, role: str) -> str:
        """One of that role, once there is one."""
        end = time.monotonic() + 60
        while True:
            labels = f"{ROLE_LABEL}={role}"
            for pod in await self.cluster.listed("Pod", self.namespace, labels=labels):
                return str(pod["metadata"]["name"])
            assert time.monotonic() < end
            await asyncio.sleep(PAUSE)

    async def names(self, kind: str) -> set[str]:
        labels = "" if kind == "MARLJob" else JOB_LABEL
        found = await self.cluster.listed(kind, self.namespace, labels=labels)
        return {one["metadata"]["name"] for one in found}


def running(name: str = "main", **more: Any) -> Manifest:
    """A container's status."""
    state = {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    return {"name": name, "ready": True, "restartCount": 0, "image": "x", "imageID": "x"} | (
        state | more
    )


def ended(code: int, message: str = "") -> Manifest:
    """A state of one."""
    said = {"exitCode": code, "reason": "Error", "message": message, "containerID": "test://1"}
    return {"terminated": said | {"finishedAt": "2026-01-01T00:00:01Z"}}


@pytest.fixture
async def world(kubeconfig: Path) -> AsyncIterator[World]:
    namespace = f"test-{secrets.token_hex(4)}"
    settings = ControllerSettings(images=IMAGES, namespaces=[namespace])
    async with connection(str(kubeconfig)) as api, Orchestrators() as orchestrators:
        cluster = Cluster(api)
        await _define(cluster)
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        await cluster.call("POST", "/api/v1/namespaces", body=body)
        cache = Cache()
        yield World(cluster, namespace, cache, Reconciler(settings, cluster, cache, orchestrators))


async def _define(cluster: Cluster) -> None:
    """The MARLJob, served when this returns."""
    try:
        await cluster.call("POST", CRDS, body=crd())
    except RefusedError as error:
        if error.status != 409:
            raise
    end = time.monotonic() + 30
    while True:
        try:
            await cluster.listed("MARLJob")
            return
        except RefusedError:
            assert time.monotonic() < end
            await asyncio.sleep(PAUSE)
