"""A chart is upgraded while jobs run: theirs goes on as it was begun."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contract.controller.conftest import CRDS, IMAGES, PAUSE, World
from tests.contract.controller.test_looks import job
from tests.contract.controller.test_store import HERE, shared_store
from tests.ports import free_port

from flexmarl.contracts.crd import crd
from flexmarl.contracts.reading import JobFileError, load_job, served_job
from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.cache import Key
from flexmarl.controller.names import Manifest
from flexmarl.controller.reconcile import Reconciler
from flexmarl.controller.settings import ControllerSettings
from flexmarl.controller.store import JobUsers

WORKLOADS = ("Deployment", "StatefulSet", "Job")


@asynccontextmanager
async def later_definition(world: World, key: Key) -> AsyncIterator[None]:
    """With one field more, that has a default, and one word more for a field that may change."""
    later = crd()
    (version,) = later["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["novelty"] = {"type": "integer", "default": 0}
    gang = spec["properties"]["gang"]
    del gang["x-kubernetes-validations"]
    gang["properties"]["kind"]["enum"].append("novel")
    try:
        await _defined(world, key, later, novelty=True)
        yield
    finally:
        await _defined(world, key, crd(), novelty=False)


async def _defined(world: World, key: Key, definition: Manifest, *, novelty: bool) -> None:
    await world.change(f"{CRDS}/marljobs.flexmarl.io", {"spec": definition["spec"]})
    end = time.monotonic() + 60
    while ("novelty" in (await _get(world, f"{world.path}/{key.name}"))["spec"]) is not novelty:
        assert time.monotonic() < end
        await asyncio.sleep(PAUSE)


async def _get(world: World, path: str) -> Manifest:
    return await world.cluster.call("GET", path)


@asynccontextmanager
async def later_controller(world: World) -> AsyncIterator[None]:
    settings = ControllerSettings(images={**IMAGES, "slim": "later"}, namespaces=[world.namespace])
    async with Orchestrators() as asker:
        world.reconciler = Reconciler(settings, world.cluster, world.cache, asker)
        yield


async def templates(world: World) -> dict[str, Any]:
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for kind in WORKLOADS
        for one in await world.cluster.listed(kind, world.namespace)
    }


async def file(world: World, tmp_path: Path, name: str = "tiny") -> Path:
    """As its pods have it mounted."""
    at = f"/api/v1/namespaces/{world.namespace}/configmaps/{name}-job"
    found = tmp_path / "job.yaml"
    found.write_text((await _get(world, at))["data"]["job.yaml"])
    return found


async def test_a_later_release_leaves_a_running_job_what_it_can_read(
    world: World, tmp_path: Path
) -> None:
    key = await world.submit(job())
    await world.runs(key)
    before = await templates(world)
    async with later_definition(world, key), later_controller(world):
        await world.look(key)
        assert load_job(await file(world, tmp_path)).spec.steps == 2
        change = {"steps": 5, "balancing": {"delta": 7}}
        await world.change(f"{world.path}/tiny", {"spec": change})
        end = time.monotonic() + 60
        while await _steps(world) != "5":
            assert time.monotonic() < end
            await world.look(key)
        found = load_job(await file(world, tmp_path))
        assert (found.spec.steps, found.spec.balancing.delta) == (5, 7)
        assert await templates(world) == before, "no two releases in one job"
        await world.look(key)
        assert await templates(world) == before
        # Begun anew it is wholly of the later release; and what reads it is not particular.
        await world.change(f"{world.path}/tiny", {"spec": {"suspend": True}})
        await world.until(key, "Suspended")
        await world.change(f"{world.path}/tiny", {"spec": {"suspend": False}})
        await world.until(key, "PodsNotReady")
        spec = json.loads((await file(world, tmp_path)).read_text())["spec"]
        assert spec["novelty"] == 0
        with pytest.raises(JobFileError):
            load_job(tmp_path / "job.yaml")
        assert served_job(tmp_path / "job.yaml")[1] == ["spec.novelty"]
        after = await templates(world)
        (main,) = after["tiny-orchestrator"]["containers"]
        assert main["image"] == "later"


async def test_other_code_with_images_of_the_same_names_leaves_running_pods_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tag that moves, or one that was pushed again."""
    key = await world.submit(job())
    await world.runs(key)
    before = await templates(world)
    monkeypatch.setattr("flexmarl.controller.render.pods.GRACE_SECONDS", 77)
    settings = ControllerSettings(images=IMAGES, namespaces=[world.namespace])
    async with Orchestrators() as asker:
        world.reconciler = Reconciler(settings, world.cluster, world.cache, asker)
        assert (await world.look(key))["reason"] == "Running"
        assert await templates(world) == before
        # What has to be made anew goes with the rest.
        await world.change(f"{world.path}/tiny", {"spec": {"steps": 5}})
        end = time.monotonic() + 60
        while await _steps(world) != "5":
            assert time.monotonic() < end
            await world.look(key)
        assert await templates(world) == before
        await world.change(f"{world.path}/tiny", {"spec": {"suspend": True}})
        await world.until(key, "Suspended")
        await world.change(f"{world.path}/tiny", {"spec": {"suspend": False}})
        await world.until(key, "PodsNotReady")
        after = await templates(world)
        assert {one["terminationGracePeriodSeconds"] for one in after.values()} == {77}


async def test_a_controller_that_is_older_than_the_definition_neglects_no_job(
    world: World, tmp_path: Path
) -> None:
    """That of a release beside the one that was upgraded, or of this one until it is restarted."""
    pools = [{"name": "fast", "role": "engine", "min": 1, "max": 2}]
    runs, waits, new = (job(pools=pools) for _ in range(3))
    for name, made in (("runs", runs), ("waits", waits), ("new", new)):
        made["metadata"]["name"] = name
        for policy in made["spec"]["policies"]:
            policy["pools"] = ["fast"]
    first = await world.submit(runs)
    await world.runs(first)
    second = await world.submit(waits)
    assert (await world.look(second))["phase"] == "Starting"
    async with later_definition(world, first):
        third = await world.submit(new)
        for key in (second, third):
            status = await world.until(key, "PodsNotReady")
            assert status["phase"] == "Starting"
            (accepted,) = [one for one in status["conditions"] if one["type"] == "Accepted"]
            assert accepted["status"] == "True"
            assert "spec.novelty" in accepted["message"]
        spec = json.loads((await file(world, tmp_path, "new")).read_text())["spec"]
        assert spec["novelty"] == 0
        assert served_job(tmp_path / "job.yaml")[0].metadata.name == "new"
        change = [{**pools[0], "min": 2}]
        await world.change(f"{world.path}/runs", {"spec": {"pools": change, "steps": 7}})
        await world.look(first)
        engines = await world.cluster.get("StatefulSet", world.namespace, "runs-engine-fast")
        assert engines is not None
        assert engines["spec"]["replicas"] == 2
        await world.cluster.delete("Deployment", world.namespace, "runs-worker")
        await world.until(first, "PodsNotReady")
        end = time.monotonic() + 60
        while "runs-worker" not in await world.names("Deployment"):
            assert time.monotonic() < end
            await asyncio.sleep(PAUSE)
            await world.look(first)


async def _steps(world: World) -> str:
    found = await world.cluster.get("Job", world.namespace, "tiny-orchestrator")
    return "" if found is None else str(found["metadata"]["annotations"]["flexmarl.io/steps"])


async def test_a_value_that_a_later_release_knows_disturbs_no_job_that_runs_and_fails_none(
    world: World, tmp_path: Path
) -> None:
    url = f"redis://operator:pw@127.0.0.1:{free_port()}"
    settings = ControllerSettings(
        images=IMAGES, namespaces=[world.namespace], store_url=url, installation_uid=HERE
    )
    async with shared_store(tmp_path, url), Orchestrators() as asker:
        world.reconciler = Reconciler(settings, world.cluster, world.cache, asker)
        users = JobUsers(url, HERE)
        runs, new = (job(store={}, gang={"kind": kind}) for kind in ("none", "novel"))
        new["metadata"]["name"] = "new"
        first = await world.submit(runs)
        await world.runs(first)
        before = await templates(world)
        async with later_definition(world, first):
            await world.change(f"{world.path}/tiny", {"spec": {"gang": {"kind": "novel"}}})
            second = await world.submit(new)
            for key, phase in ((first, "Running"), (second, "Starting")):
                status = await world.look(key)
                assert (status["phase"], status["reason"]) == (phase, "ControllerTooOld")
                (accepted,) = [one for one in status["conditions"] if one["type"] == "Accepted"]
                assert accepted["status"] == "False"
                assert 'spec.gang.kind: "novel"' in accepted["message"]
                assert "upgrade FlexMARL" in accepted["message"]
            assert await templates(world) == before
            # What it has goes on: a store that has lost its users gets that of the job again.
            known = await users.users()
            await users.forget(known)
            assert await world.reconciler.sweep() == {first}
            await world.look(first)
            assert await users.users() == known
            await world.change(f"{world.path}/tiny", {"spec": {"suspend": True}})
            await world.until(first, "Suspended")
            await world.change(f"{world.path}/tiny", {"spec": {"gang": {"kind": "none"}}})
            await world.change(f"{world.path}/new", {"spec": {"gang": {"kind": "none"}}})
            status = await world.until(second, "PodsNotReady")
            (accepted,) = [one for one in status["conditions"] if one["type"] == "Accepted"]
            assert accepted["status"] == "True"
