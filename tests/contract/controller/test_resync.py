"""What a resync finds is mended, and costs no look at jobs of which it finds nothing."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from redis.asyncio import Redis
from tests.contract.controller.conftest import IMAGES, World
from tests.contract.controller.test_looks import job
from tests.contract.controller.test_store import shared_store
from tests.contract.controller.test_watching import (
    _has,
    _is,
    _went_round,
    controller,
    phase,
    read,
    until,
)
from tests.ports import free_port

from flexmarl.controller.apply import UNWATCHED
from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.cache import Key
from flexmarl.controller.cluster import Cluster, RefusedError
from flexmarl.controller.names import Manifest
from flexmarl.controller.process import Controller, _serve_health
from flexmarl.controller.reconcile import Reconciler
from flexmarl.controller.settings import ControllerSettings
from flexmarl.experience.connection import connect


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Key]:
    """At which job each was."""
    found: list[Key] = []
    look = Reconciler.look

    async def counted(self: Reconciler, key: Key) -> float:
        found.append(key)
        return await look(self, key)

    monkeypatch.setattr(Reconciler, "look", counted)
    return found


async def settled(started: Controller, looks: list[Key], *, rounds: int = 4) -> None:
    """Until so many rounds of the resync brought no look."""
    async with asyncio.timeout(60):
        while True:
            before = len(looks)
            for _ in range(rounds):
                await until(partial(_went_round, started, started._synced))
            if len(looks) == before:
                return


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked at without a reason, and what was applied is old at once."""
    monkeypatch.setattr("flexmarl.controller.process.ALL_ROUNDS", 10**6)
    monkeypatch.setattr("flexmarl.controller.apply.YOUNG_SECONDS", 0.0)


@pytest.mark.usefixtures("quick")
async def test_a_job_of_which_nothing_is_new_is_not_looked_at(
    world: World, looks: list[Key]
) -> None:
    other = job()
    other["metadata"]["name"] = "other"
    async with controller(world, resync=0.3) as started:
        await world.submit(job())
        await world.submit(other)
        await until(lambda: _all(world, "Starting"))
        await settled(started, looks)
        looks.clear()
        await world.change(f"{world.path}/other", {"metadata": {"annotations": {"a": "b"}}})
        await settled(started, looks)
        assert {key.name for key in looks} == {"other"}


async def _all(world: World, wanted: str) -> bool:
    jobs = await world.cluster.listed("MARLJob", world.namespace)
    return all(one.get("status", {}).get("phase") == wanted for one in jobs)


@pytest.mark.usefixtures("quick")
async def test_what_nobody_watches_is_mended_though_nothing_happens(
    world: World, looks: list[Key]
) -> None:
    async with controller(world, resync=0.3) as started:
        await world.submit(job())
        await until(lambda: _all(world, "Starting"))
        await settled(started, looks)
        await world.cluster.delete("Service", world.namespace, "tiny-trainers")
        await until(lambda: _has(world.names("Service"), "tiny-trainers"))


@pytest.mark.usefixtures("quick")
async def test_every_kind_is_compared_in_every_round_whatever_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds are 45 s apart, and a Service that is gone is back within a minute."""
    compared: list[str] = []
    compare = Reconciler.compare

    def told(self: Reconciler, kind: str, listed: list[Manifest]) -> set[Key]:
        compared.append(kind)
        return compare(self, kind, listed)

    monkeypatch.setattr(Reconciler, "compare", told)
    async with controller(world, resync=0.3) as started:
        await until(partial(_went_round, started, started._synced))
        compared.clear()
        await until(partial(_went_round, started, started._synced))
        assert sorted(compared) == sorted(UNWATCHED)

        def refuses(*_: object) -> set[Key]:
            raise RefusedError(403, "Forbidden", "services may not be listed")

        monkeypatch.setattr(Reconciler, "compare", refuses)
        await until(partial(_went_round, started, started._synced))
        monkeypatch.setattr(Reconciler, "compare", compare)


async def test_it_is_ready_once_it_has_read_what_there_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Cluster):
        refuses = True

        async def _raw(self, method: str, at: str, **more: Any) -> bytes:
            if self.refuses:
                raise RefusedError(403, "Forbidden", "marljobs may not be listed")
            return await super()._raw(method, at, **more)

    monkeypatch.setattr("flexmarl.controller.process.SOON", 0.1)
    cluster, port = Refusing(world.cluster._api), free_port()
    settings = ControllerSettings(images=IMAGES, namespaces=[world.namespace])
    async with Orchestrators() as asker, aiohttp.ClientSession() as session:

        async def says(path: str, wanted: int, host: str = "127.0.0.1") -> bool:
            async with session.get(f"http://{host}:{port}/{path}") as answer:
                return answer.status == wanted

        made = Controller(settings, cluster, asker)
        runner = await _serve_health(made, port)
        filling = asyncio.create_task(made.fill())
        await asyncio.sleep(0.5)
        assert not filling.done()
        assert await says("healthz", 200), "or it would be started again"
        assert await says("readyz", 503)
        if socket.has_dualstack_ipv6():
            assert await says("healthz", 200, "[::1]")
        cluster.refuses = False
        await filling
        async with asyncio.TaskGroup() as group:
            tasks = made.start(group)
            await until(lambda: says("readyz", 200))
            for task in tasks:
                task.cancel()
        await runner.cleanup()


@pytest.mark.usefixtures("quick")
async def test_users_that_a_store_has_lost_are_made_again(
    world: World, looks: list[Key], tmp_path: Path
) -> None:
    url = f"redis://operator:secret@127.0.0.1:{free_port()}"
    made = job()
    del made["spec"]["store"]
    async with (
        shared_store(tmp_path, url),
        connect(url) as store,
        controller(world, resync=0.3, store_url=url, installation_uid="here") as started,
    ):
        await world.submit(made)
        await until(lambda: _all(world, "Starting"))
        await settled(started, looks)
        (user,) = await _users(store)
        await store.execute_command("ACL", "DELUSER", user)

        async def back() -> bool:
            return await _users(store) == {user}

        await until(back)


async def _users(store: Redis) -> set[str]:
    names = await store.execute_command("ACL", "USERS")
    return {name.decode() for name in names if name.startswith(b"flexmarl/")}


async def test_what_is_deleted_before_it_was_seen_is_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the watch nor the resync brings it."""
    monkeypatch.setattr("flexmarl.controller.again.AGAIN_SECONDS", 0.3)
    monkeypatch.setattr("flexmarl.controller.apply.YOUNG_SECONDS", 1.0)
    async with controller(world) as started:
        await world.submit(job())
        started.event("MARLJob", {"type": "ADDED", "object": await read(world)})
        await until(lambda: _is(phase(world), "Starting"))
        await world.cluster.delete("StatefulSet", world.namespace, "tiny-trainer")
        await until(lambda: _has(world.names("StatefulSet"), "tiny-trainer"))
        for kind in ("StatefulSet", "Deployment", "Job"):
            for one in await world.cluster.listed(kind, world.namespace):
                started.event(kind, {"type": "ADDED", "object": _with_pods(one)})


def _with_pods(manifest: Manifest) -> Manifest:
    """As it is once its pods are made."""
    replicas = manifest["spec"].get("replicas", 1)
    return {**manifest, "status": {"replicas": replicas, "active": 1}}
