"""A job's life at a real API server, whose own controllers make its pods; the test says of them
what a kubelet would."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.contract.controller.conftest import IMAGES, World, ended, running
from tests.contract.controller.test_looks import job

from flexmarl.contracts.v1 import orchestrator_pb2_grpc
from flexmarl.controller import reconcile
from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.cache import Key
from flexmarl.controller.cluster import RefusedError
from flexmarl.controller.names import Manifest
from flexmarl.controller.observed import Progress
from flexmarl.controller.reconcile import Reconciler
from flexmarl.controller.render.parts import PORT
from flexmarl.controller.settings import ControllerSettings
from flexmarl.orchestrator.desk import Desk, DeskService
from flexmarl.runtime.grpc import serving


async def suspend(world: World, wanted: bool) -> None:
    await world.change(f"{world.path}/tiny", {"spec": {"suspend": wanted}})


async def uid(world: World, kind: str, name: str) -> str:
    found = await world.cluster.get(kind, world.namespace, name)
    return "" if found is None else str(found["metadata"]["uid"])


async def events(world: World) -> list[tuple[str, str]]:
    """Type and reason of those of the job."""
    found = await world.cluster.listed(
        "Event", world.namespace, fields="involvedObject.kind=MARLJob"
    )
    found.sort(key=lambda one: str(one["metadata"]["name"]))
    return [(one["type"], one["reason"]) for one in found]


@asynccontextmanager
async def trained(world: World, key: Key) -> AsyncIterator[Desk]:
    """The desk of the job's orchestrator, which has finished a step; the job runs."""
    number = int(world.namespace.removeprefix("test-"), 16)
    ip = f"127.{7 + (number >> 16) % 200}.{(number >> 8) % 256}.{1 + number % 254}"
    await world.runs(key, ip)
    secret = await world.cluster.get("Secret", world.namespace, "tiny-job")
    assert secret is not None
    token = base64.b64decode(secret["data"]["token"]).decode()
    desk = Desk()
    desk.said = {"phase": "Running", "step": 1, "steps": 2}
    service = DeskService(desk)

    def add(server: Any) -> None:
        orchestrator_pb2_grpc.add_OrchestratorServicer_to_server(service, server)

    async with serving(add, f"{ip}:{PORT}", token=token):
        await ask(world, key)
        assert (await world.look(key))["step"] == 1
        yield desk


async def ask(world: World, key: Key) -> None:
    where = world.reconciler.asks(key)
    assert where is not None
    async with Orchestrators() as asker:
        said = await asker.progress(*where)
    assert said is not None
    world.reconciler.tell(key, said)


async def test_a_suspension_that_is_taken_back_while_it_saves_ends_and_the_job_starts_again(
    world: World,
) -> None:
    key = await world.submit(job())
    async with trained(world, key) as desk:
        before = await uid(world, "Job", "tiny-orchestrator")
        await suspend(world, True)
        assert (await world.look(key))["reason"] == "SavingState"
        await world.look(key)
        assert desk.save.is_set()
        await suspend(world, False)
        status = await world.look(key)
        assert (status["phase"], status["reason"]) == ("Suspending", "SavingState")
        assert await uid(world, "Job", "tiny-orchestrator") == before
        desk.saved = 1
        await ask(world, key)
    end = time.monotonic() + 60
    while (status := await world.look(key))["phase"] == "Suspending":
        assert time.monotonic() < end
    assert status["phase"] == "Starting"
    await world.look(key)
    assert await uid(world, "Job", "tiny-orchestrator") not in ("", before)


async def test_nobody_is_asked_to_save_before_it_is_written_down(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await world.submit(job())
    async with trained(world, key) as desk:
        await suspend(world, True)
        with monkeypatch.context() as broken:

            async def away(*_: Any) -> Manifest:
                raise RefusedError(503, "Unavailable", "etcd is away")

            broken.setattr(world.cluster, "write_status", away)
            for _ in range(3):
                with pytest.raises(RefusedError):
                    await world.look(key)
        assert not desk.save.is_set()
        await suspend(world, False)
        assert (await world.look(key))["phase"] == "Running"


async def test_a_deadline_counts_neither_queued_nor_suspended_time(world: World) -> None:
    key = await world.submit(job(activeDeadlineSeconds=2, suspend=True))
    assert (await world.look(key))["phase"] == "Suspended"
    await asyncio.sleep(3)
    assert (await world.look(key))["phase"] == "Suspended"
    await suspend(world, False)
    assert (await world.look(key))["phase"] == "Starting"
    await asyncio.sleep(3)
    status = await world.look(key)
    assert status["phase"] == "Starting"
    assert "startTime" not in status
    assert "startTime" in await world.runs(key)
    await suspend(world, True)
    await world.until(key, "Suspended")
    await asyncio.sleep(3)
    assert (await world.look(key))["phase"] == "Suspended"
    await suspend(world, False)
    await world.runs(key)
    assert (await world.until(key, "DeadlineExceeded"))["phase"] == "Failed"


async def test_steps_that_are_raised_before_anybody_saw_the_end_are_trained(world: World) -> None:
    key = await world.submit(job())
    await world.runs(key)
    before = await uid(world, "Job", "tiny-orchestrator")
    leader = await world.pod("orchestrator")
    await world.says(leader, running(state=ended(0)), phase="Succeeded")
    end = time.monotonic() + 60
    while not await complete(world):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    await world.change(f"{world.path}/tiny", {"spec": {"steps": 5}})
    while await uid(world, "Job", "tiny-orchestrator") in ("", before):
        assert time.monotonic() < end
        status = await world.look(key)
        assert (status["phase"], status.get("step", 0)) == ("Starting", 0)
        await asyncio.sleep(0.05)
    assert (await world.runs(key))["steps"] == 5
    await world.says(await world.pod("orchestrator"), running(state=ended(0)), phase="Succeeded")
    status = await world.until(key, "Trained")
    assert (status["phase"], status["progress"]) == ("Complete", "5/5")


async def complete(world: World) -> bool:
    found = await world.cluster.get("Job", world.namespace, "tiny-orchestrator")
    conditions = (found or {}).get("status", {}).get("conditions", ())
    return any((one["type"], one["status"]) == ("Complete", "True") for one in conditions)


async def test_what_the_api_server_does_not_take_is_written_down_before_it_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]}
    hook = {
        "name": "broken.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [rule | {"operations": ["CREATE"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
    name = f"broken-{world.namespace}"
    await world.cluster.call("POST", path, body={"metadata": {"name": name}, "webhooks": [hook]})
    try:
        await _until_refused(world)
        key = await world.submit(job())
        with pytest.raises(RefusedError):
            await world.look(key)
        status = (await world.cluster.call("GET", f"{world.path}/tiny"))["status"]
        assert (status["phase"], status["reason"]) == ("Starting", "PodsNotReady")
        monkeypatch.setattr(reconcile, "TOLD_SECONDS", 0.0)
        with pytest.raises(RefusedError):
            await world.look(key)
        status = (await world.cluster.call("GET", f"{world.path}/tiny"))["status"]
        assert status["reason"] == "APIUnavailable"
        assert "failed calling webhook" in status["message"]
        assert ("Warning", "APIUnavailable") in await events(world)
    finally:
        await world.cluster.call("DELETE", f"{path}/{name}")
    end = time.monotonic() + 60
    while status["reason"] != "PodsNotReady":
        assert time.monotonic() < end
        try:
            status = await world.look(key)
        except RefusedError:
            await asyncio.sleep(0.2)


async def _until_refused(world: World) -> None:
    """The API server needs a moment to know of a webhook."""
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "any", "namespace": world.namespace},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "a", "image": "a"}]},
            },
        },
    }
    end = time.monotonic() + 60
    while True:
        try:
            await world.cluster.try_to_make(body)
        except RefusedError as error:
            if error.status == 500:
                return
        assert time.monotonic() < end
        await asyncio.sleep(0.1)


async def test_a_job_has_a_status_when_nobody_says_why_its_pods_lack(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.limit("none", {"pods": "0"})
    key = await world.submit(job())
    await world.look(key)

    async def away(namespace: str) -> Any:
        raise RefusedError(500, "InternalError", "etcd is away")

    monkeypatch.setattr(world.reconciler._questions._troubles, "failures", away)
    monkeypatch.setattr("flexmarl.controller.seeing.SILENT_SECONDS", -60.0)
    assert (await world.look(key))["phase"] == "Starting"


async def test_troubles_are_warnings_and_evaluations_no_events(world: World) -> None:
    await world.limit("none", {"pods": "0"})
    key = await world.submit(job())
    await world.until(key, "QuotaExceeded")
    quotas = f"/api/v1/namespaces/{world.namespace}/resourcequotas/none"
    await world.cluster.call("DELETE", quotas)
    await world.runs(key)
    said = await events(world)
    assert said[0] == ("Normal", "PodsNotReady")
    assert ("Warning", "QuotaExceeded") in said
    assert ("Normal", "Running") in said
    for phase in ("Evaluating", "Running", "Evaluating"):
        world.reconciler.tell(key, Progress(phase, 1))
        assert (await world.look(key))["reason"] == phase
    assert await events(world) == said


async def test_a_status_of_a_job_that_is_another_by_now_is_looked_at_again_soon(
    world: World,
) -> None:
    key = await world.submit(job(suspend=True))
    await world.read()
    await world.cluster.delete("MARLJob", world.namespace, "tiny")
    await world.submit(job(suspend=True))
    assert await world.reconciler.look(key) < time.time() + 5
    assert (await world.look(key))["phase"] == "Suspended"


@pytest.mark.parametrize("again", [False, True])
async def test_nothing_is_remembered_of_a_job_that_was_deleted_while_it_ran(
    world: World, again: bool
) -> None:
    forgotten: list[str] = []

    class Asker(Orchestrators):
        async def forget(self, uid: str) -> None:
            forgotten.append(uid)
            await super().forget(uid)

    settings = ControllerSettings(images=IMAGES, namespaces=[world.namespace])
    async with Asker() as asker:
        world.reconciler = Reconciler(settings, world.cluster, world.cache, asker)
        key = await world.submit(job())
        await world.runs(key)
        world.reconciler.tell(key, Progress("Running", 1, saved=1))
        old = await uid(world, "MARLJob", "tiny")
        assert world.reconciler.asks(key) is not None
        await world.cluster.delete("MARLJob", world.namespace, "tiny")
        if again:  # both events come before a look
            await world.submit(job())
        await world.read()
        await world.reconciler.look(key)
        assert forgotten == [old]
        if again:
            assert "step" not in await world.look(key)
        else:
            assert not world.reconciler.tell(key, Progress("Running", 2))
