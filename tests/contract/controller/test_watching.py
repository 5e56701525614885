"""A whole controller with a real API server, whose watches are slow, lost or never there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import kopf
import pytest
from prometheus_client import generate_latest
from tests.contract.controller.conftest import IMAGES, World
from tests.contract.controller.test_looks import job

from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.cluster import Cluster
from flexmarl.controller.names import JOB_LABEL, Manifest
from flexmarl.controller.observed import Progress
from flexmarl.controller.process import Controller
from flexmarl.controller.settings import ControllerSettings
from flexmarl.controller.watching import kopf_settings, watching


@asynccontextmanager
async def controller(
    world: World, cluster: Cluster | None = None, *, resync: float = 3600, **more: Any
) -> AsyncIterator[Controller]:
    """One that has read what there is, and hears of nothing else unless told. `more`: settings."""
    settings = ControllerSettings(
        images=IMAGES,
        namespaces=[world.namespace],
        resync_seconds=resync,
        progress_seconds=0.05,
        **more,
    )
    async with Orchestrators() as asker:
        made = Controller(settings, cluster or world.cluster, asker)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("flexmarl.controller.process.SOON", resync)
            await made.fill()
            async with asyncio.TaskGroup() as group:
                tasks = made.start(group)
                yield made
                # Torn requests leave connections behind: between two rounds there are none.
                if resync < 3600:
                    await until(partial(_went_round, made, made._synced))
                await until(partial(_idle, made))
                for task in tasks:
                    task.cancel()
        await asyncio.sleep(0.2)


async def _went_round(made: Controller, before: float) -> bool:
    return made._synced > before


async def _idle(made: Controller) -> bool:
    return not (made._wakes.busy or made._reconciler.errands.busy)


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def read(world: World) -> Manifest:
    return await world.cluster.call("GET", f"{world.path}/tiny")


async def phase(world: World) -> str:
    return str((await read(world)).get("status", {}).get("phase", ""))


async def test_a_controller_that_starts_again_changes_nothing_of_a_job_that_runs(
    world: World,
) -> None:
    pools = [{"name": "fast", "role": "engine", "gpus": 0, "min": 1, "max": 3}]
    made = job(pools=pools)
    for policy in made["spec"]["policies"]:
        policy["pools"] = ["fast"]
    key = await world.submit(made)
    await world.look(key)
    at = f"/apis/apps/v1/namespaces/{world.namespace}/statefulsets/tiny-engine-fast"
    await world.change(at, {"spec": {"replicas": 3}})
    await world.look(key)
    before = await world.cluster.call("GET", at)
    assert before["spec"]["replicas"] == 3
    events = await world.cluster.listed("Event", world.namespace, fields="reason=PodsNotReady")
    async with controller(world) as started:
        # The watch of jobs is first, that of workloads has brought nothing yet.
        started.event("MARLJob", {"type": "MODIFIED", "object": await read(world)})
        await asyncio.sleep(2)
    after = await world.cluster.call("GET", at)
    assert after["spec"]["replicas"] == 3
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    said = await world.cluster.listed("Event", world.namespace, fields="reason=PodsNotReady")
    assert len(said) == len(events)


async def test_looks_begin_once_watches_have_told_of_what_was_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read all of it again."""
    key = await world.submit(job())
    await world.look(key)
    settings = ControllerSettings(images=IMAGES, namespaces=[world.namespace])
    async with Orchestrators() as asker:
        made = Controller(settings, world.cluster, asker)
        await made.fill()
        there = made._cache.objects(key)
        telling = asyncio.create_task(made.told())
        *some, last = [
            ("MARLJob", there.job),
            *((kind, one) for (kind, _), one in there.children.items()),
        ]
        for kind, one in some:
            made.event(kind, {"type": "ADDED", "object": one})
        await asyncio.sleep(0.1)
        assert not telling.done()
        made.event(last[0], {"type": "ADDED", "object": last[1]})
        await telling
        monkeypatch.setattr("flexmarl.controller.process.TOLD_SECONDS", 0.1)
        silent = Controller(settings, world.cluster, asker)
        await silent.fill()
        await silent.told()


async def test_nothing_is_looked_at_before_all_of_it_was_read(world: World) -> None:
    may = asyncio.Event()

    class Late(Cluster):
        async def pages(self, kind: str, *more: Any, **which: Any) -> AsyncIterator[list[Manifest]]:
            if kind == "StatefulSet":
                await may.wait()
            async for page in super().pages(kind, *more, **which):
                yield page

    key = await world.submit(job())
    await world.look(key)
    before = await read(world)
    starting = asyncio.create_task(_start(world, Late(world.cluster._api)))
    await asyncio.sleep(1)
    assert await read(world) == before
    may.set()
    await starting


async def _start(world: World, cluster: Cluster) -> None:
    async with controller(world, cluster):
        await asyncio.sleep(0.5)


async def test_what_watches_do_not_tell_is_mended_by_the_resync(world: World) -> None:
    async with controller(world, resync=1):
        await world.submit(job())
        await until(lambda: _is(phase(world), "Starting"))
        await world.cluster.delete("StatefulSet", world.namespace, "tiny-trainer")
        await until(lambda: _has(world.names("StatefulSet"), "tiny-trainer"))
        await world.change(f"{world.path}/tiny", {"spec": {"suspend": True}})
        await until(lambda: _is(phase(world), "Suspended"))
        await world.cluster.delete("MARLJob", world.namespace, "tiny")
        await until(lambda: _no_series(world.namespace))


async def test_a_resync_comes_within_a_minute() -> None:
    assert ControllerSettings(images=IMAGES).resync_seconds < 60


async def _is(found: Awaitable[str], wanted: str) -> bool:
    return await found == wanted


async def _has(found: Awaitable[set[str]], wanted: str) -> bool:
    return wanted in await found


def series(namespace: str) -> list[str]:
    """What `/metrics` says of its jobs."""
    lines = generate_latest().decode().splitlines()
    return [line for line in lines if f'namespace="{namespace}"' in line]


async def _no_series(namespace: str) -> bool:
    return not series(namespace)


@pytest.mark.parametrize("while_looked_at", [False, True])
async def test_the_series_of_a_deleted_job_are_gone_from_metrics(
    world: World, while_looked_at: bool
) -> None:
    looking, may = asyncio.Event(), asyncio.Event()

    class Held(Cluster):
        async def write_status(self, job: Mapping[str, Any], status: Manifest) -> Manifest:
            looking.set()
            if while_looked_at:
                await may.wait()
            return await super().write_status(job, status)

    async with controller(world, Held(world.cluster._api)) as started:
        await world.submit(job())
        started.event("MARLJob", {"type": "ADDED", "object": await read(world)})
        await looking.wait()
        if not while_looked_at:
            await until(lambda: _is(phase(world), "Starting"))
        assert {line.partition("{")[0] for line in series(world.namespace)} == {
            "flexmarl_job_phase",
            "flexmarl_job_step",
            "flexmarl_job_steps",
            "flexmarl_job_restarts",
        }
        last = await read(world)
        await world.cluster.delete("MARLJob", world.namespace, "tiny")
        started.event("MARLJob", {"type": "DELETED", "object": last})
        may.set()
        await until(lambda: _no_series(world.namespace))
        await asyncio.sleep(0.5)
        assert not series(world.namespace)


async def test_one_orchestrator_that_is_asked_in_vain_keeps_nobody_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def progress(self: Orchestrators, uid: str, ip: str, token: str) -> Progress | None:
        asked.append(uid)
        if uid == "silent":
            await asyncio.sleep(3600)
        if uid == "cut":
            raise asyncio.CancelledError
        if uid == "broken":
            raise ValueError
        return Progress(step=len(asked))

    monkeypatch.setattr(Orchestrators, "progress", progress)
    uids = ("silent", "cut", "broken", "well")
    for name in uids:
        made = job()
        made["metadata"]["name"] = name
        await world.submit(made)
    async with controller(world) as started:
        monkeypatch.setattr(started._reconciler, "asks", lambda key: (key.name, "", ""))
        await until(lambda: _many(asked))
        assert started.healthy
    assert asked.count("silent") == 1
    assert min(asked.count(uid) for uid in uids[1:]) > 2


async def _many(asked: list[str]) -> bool:
    return asked.count("well") > 5


async def test_looks_wait_for_no_orchestrator_that_is_to_save(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are suspended at once, a new job is looked at."""
    answers, saves = asyncio.Event(), list[str]()

    async def save(self: Orchestrators, uid: str, ip: str, token: str) -> None:
        saves.append(uid)
        await answers.wait()

    async def progress(self: Orchestrators, uid: str, ip: str, token: str) -> Progress:
        return Progress("Running", 1, 2)

    monkeypatch.setattr(Orchestrators, "save", save)
    monkeypatch.setattr(Orchestrators, "progress", progress)
    suspended = [f"old-{number}" for number in range(3)]
    for name in suspended:
        await world.runs(await world.submit(job_named(name)))
    async with controller(world, resync=1, workers=2):
        await until(lambda: _steps(world, suspended))
        for name in suspended:
            await world.change(f"{world.path}/{name}", {"spec": {"suspend": True}})
        await until(lambda: _as_many(saves, suspended))
        await world.submit(job_named("new"))
        await until(lambda: _has(world.names("Job"), "new-orchestrator"))
        answers.set()


def job_named(name: str) -> Manifest:
    made = job()
    made["metadata"]["name"] = name
    return made


async def _steps(world: World, names: list[str]) -> bool:
    jobs = {one["metadata"]["name"]: one for one in await world.cluster.listed("MARLJob")}
    return all(jobs[name].get("status", {}).get("step") == 1 for name in names)


async def _as_many(saves: list[str], suspended: list[str]) -> bool:
    return len(saves) >= len(suspended)


async def test_an_orchestrator_that_the_controller_cannot_reach_is_told_until_it_answers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flexmarl.controller.known.SILENT_SECONDS", 0.2)
    await world.runs(await world.submit(job()), "127.3.2.1")
    async with controller(world, resync=1):
        await until(lambda: _is(reason(world), "OrchestratorSilent"))
        status = (await read(world))["status"]
        assert status["phase"] == "Running"
        assert "at 127.3.2.1, port 7070, does not answer the controller" in status["message"]
        assert "UNAVAILABLE" in status["message"]
        said = await world.cluster.listed("Event", world.namespace, fields="type=Warning")
        assert [one["reason"] for one in said].count("OrchestratorSilent") == 1

        async def progress(self: Orchestrators, uid: str, ip: str, token: str) -> Progress:
            return Progress("Running", 1, 2)

        monkeypatch.setattr(Orchestrators, "progress", progress)
        await until(lambda: _is(reason(world), "Running"))


async def reason(world: World) -> str:
    return str((await read(world)).get("status", {}).get("reason", ""))


async def test_the_resync_goes_round_where_there_is_no_job(world: World) -> None:
    async with controller(world, resync=1) as started:
        await until(partial(_went_round, started, started._synced))


async def test_a_part_that_ended_is_no_health(world: World) -> None:
    async with controller(world) as started:
        assert started.healthy
        for task in started._tasks:
            if "ask" in repr(task.get_coro()):
                task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not started.healthy


async def test_the_api_server_sends_only_what_is_of_jobs(
    world: World, monkeypatch: pytest.MonkeyPatch, kubeconfig: Any
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    told: list[str] = []

    def tell(kind: str, event: Mapping[str, Any]) -> None:
        told.append(event["object"]["metadata"]["name"])

    registry = kopf.OperatorRegistry()
    watching(registry, tell)
    stop = asyncio.Event()
    serving = asyncio.create_task(
        kopf.operator(
            registry=registry,
            settings=kopf_settings(),
            standalone=True,
            namespaces=[world.namespace],
            stop_flag=stop,
        )
    )
    for when in ("before", "after"):
        await _pod(world, f"foreign-{when}", {})
        await _pod(world, f"ours-{when}", {JOB_LABEL: "tiny"})
        await until(partial(_told, told, f"ours-{when}"))
    await _pod(world, "last", {JOB_LABEL: "tiny"})
    await until(lambda: _told(told, "last"))
    stop.set()
    await serving
    assert not [name for name in told if name.startswith("foreign")]


async def _told(told: list[str], name: str) -> bool:
    return name in told


async def _pod(world: World, name: str, labels: Mapping[str, str]) -> None:
    body = {
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {"containers": [{"name": "main", "image": "registry.invalid/nothing"}]},
    }
    await world.cluster.call("POST", f"/api/v1/namespaces/{world.namespace}/pods", body=body)
