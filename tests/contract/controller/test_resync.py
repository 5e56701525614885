"""What a resync finds is mended, and costs no look at jobs of which it finds nothing."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from redis.asyncio import Redis
from tests.contract.controller.conftest import World
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

from flexmarl.controller.cache import Key
from flexmarl.controller.names import Manifest
from flexmarl.controller.process import Controller
from flexmarl.controller.reconcile import Reconciler
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
        await store.execute_command("ACL", "DELUSER", user)  # type: ignore[no-untyped-call]

        async def back() -> bool:
            return await _users(store) == {user}

        await until(back)


async def _users(store: Redis) -> set[str]:
    names = await store.execute_command("ACL", "USERS")  # type: ignore[no-untyped-call]
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
