"""Pools follow what the orchestrator asks for, at a real API server."""

from __future__ import annotations

from typing import Any

from tests.contract.controller.conftest import IMAGES, World
from tests.contract.controller.test_looks import job

from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.cache import Key
from flexmarl.controller.names import Manifest
from flexmarl.controller.observed import Progress
from flexmarl.controller.reconcile import Reconciler
from flexmarl.controller.settings import ControllerSettings


async def pooled(world: World) -> Key:
    pools = [{"name": "fast", "role": "engine", "min": 1, "max": 3}]
    made = job(pools=pools)
    for policy in made["spec"]["policies"]:
        policy["pools"] = ["fast"]
    key = await world.submit(made)
    await world.runs(key)
    return key


async def engines(world: World) -> Manifest:
    found = await world.cluster.get("StatefulSet", world.namespace, "tiny-engine-fast")
    assert found is not None
    return found


async def asked(world: World, key: Key, wanted: int) -> int:
    """Replicas, after a look, when the orchestrator wants so many."""
    world.reconciler.tell(key, Progress("Running", 1, wanted={"fast": wanted}))
    await world.look(key)
    return int((await engines(world))["spec"]["replicas"])


async def test_a_pool_follows_the_orchestrator_between_its_min_and_its_max(world: World) -> None:
    key = await pooled(world)
    before = await engines(world)
    assert before["spec"]["replicas"] == 1
    assert [await asked(world, key, wanted) for wanted in (2, 9, 2, 0)] == [2, 3, 2, 1]
    after = await engines(world)
    assert after["spec"]["template"] == before["spec"]["template"]
    status = await world.look(key)
    assert [(pool["wanted"], pool["max"]) for pool in status["pools"]] == [(1, 3)]


async def test_a_controller_that_starts_leaves_a_pool_as_large_as_it_is(world: World) -> None:
    key = await pooled(world)
    assert await asked(world, key, 3) == 3
    for image in ("registry.invalid/flexmarl", "registry.invalid/later"):
        images: dict[str, Any] = {**IMAGES, "slim": image}
        settings = ControllerSettings(images=images, namespaces=[world.namespace])
        async with Orchestrators() as asker:
            world.reconciler = Reconciler(settings, world.cluster, world.cache, asker)
            template = (await engines(world))["spec"]["template"]
            await world.look(key)
            assert (await engines(world))["spec"]["replicas"] == 3
            assert await asked(world, key, 2) == 2
            assert await asked(world, key, 3) == 3
            assert (await engines(world))["spec"]["template"] == template
