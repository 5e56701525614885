"""What counts as a restart of a role, at a real API server: crashes, whatever else was counted."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.controller.conftest import IMAGES, World, ended, running
from tests.contract.controller.test_looks import job

from flexmarl.contracts.preparation import CONTAINER, PASSING
from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.names import Manifest
from flexmarl.controller.reconcile import Reconciler
from flexmarl.controller.settings import ControllerSettings

WAITS: Manifest = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}


def again(count: int, code: int, message: str = "", name: str = "main") -> Manifest:
    """A container that waits to be started again after so many ends."""
    return running(
        name, state=WAITS, lastState=ended(code, message), restartCount=count - 1, ready=False
    )


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_service_that_waits_for_its_store_is_not_given_up(
    world: World, forgets: bool
) -> None:
    """`forgets`: the controller starts anew after each look."""
    key = await world.submit(job(roles={"experience": {"restartPolicy": {"max": 1}}}))
    await world.look(key)
    pod = await world.pod("experience")

    async def after(count: int, code: int, message: str) -> dict[str, Any]:
        await world.says(pod, again(count, code, message), phase="Pending")
        if not forgets:
            return await world.look(key)
        async with Orchestrators() as asker:
            settings = ControllerSettings(images=IMAGES, namespaces=[world.namespace])
            world.reconciler = Reconciler(settings, world.cluster, world.cache, asker)
            return await world.look(key)

    for count in range(1, 7):
        status = await after(count, PASSING, "the store does not answer: refused")
        assert (status["phase"], status["reason"]) == ("Starting", "StoreUnreachable")
        assert status["restartsTotal"] == 0
    status = await after(7, 1, "a bug")
    assert (status["phase"], status["reason"]) == ("Starting", "ContainerRestarting")
    await after(8, PASSING, "the store does not answer: refused")
    status = await after(9, 1, "a bug")
    assert (status["phase"], status["reason"]) == ("Failed", "RestartsExceeded")
    assert "the last time with exit code 1: a bug" in status["message"]
    assert status["restarts"] == {"experience": 1}


async def test_a_preflight_that_waited_and_then_breaks_has_crashed_once(world: World) -> None:
    key = await world.submit(job(roles={"worker": {"restartPolicy": {"max": 1}}}))
    await world.look(key)
    pod = await world.pod("rollout-worker")
    main = running(state={"waiting": {"reason": "PodInitializing"}}, ready=False)
    first = again(30, PASSING, name=CONTAINER)
    await world.says(pod, main, first=[first], phase="Pending")
    assert (await world.look(key))["phase"] == "Starting"
    first = again(31, 137, "Killed", name=CONTAINER)
    await world.says(pod, main, first=[first], phase="Pending")
    status = await world.look(key)
    assert (status["phase"], status["reason"]) == ("Starting", "ContainerRestarting")
    assert list(status["ends"].values()) == [{"all": 31, "crashes": 1}]
