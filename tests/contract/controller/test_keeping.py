"""What a job's pods need stays while any of them is there, and comes back; then all of it goes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.controller.conftest import World
from tests.contract.controller.kubelet import Kubelet, kubelet
from tests.contract.controller.test_life import suspend, uid
from tests.contract.controller.test_looks import KINDS, job

from flexmarl.controller.apply import UNWATCHED
from flexmarl.controller.cache import Key

CLAIM = "PersistentVolumeClaim"


async def left(world: World) -> set[str]:
    return {kind for kind in KINDS if await world.names(kind)}


@pytest.fixture
async def node(world: World, tmp_path: Path) -> AsyncIterator[Kubelet]:
    async with kubelet(world, tmp_path) as found:
        yield found


async def runs_on(world: World, node: Kubelet) -> Key:
    """A job with pods on a node, which are there until that lets them go."""
    key = await world.submit(job())
    await world.runs(key)
    await node.takes_all()
    return key


@pytest.mark.parametrize("why", ["suspended", "over"])
async def test_pods_on_their_way_out_keep_their_fence_and_find_each_other(
    world: World, node: Kubelet, why: str
) -> None:
    key = await runs_on(world, node)
    spec = {"suspend": True} if why == "suspended" else {"activeDeadlineSeconds": 1}
    await world.change(f"{world.path}/tiny", {"spec": spec})
    await world.gone("StatefulSet", "Deployment", "Job", key=key)
    for _ in range(2):
        await world.look(key)
        assert {*UNWATCHED} <= await left(world)
    assert await world.names("NetworkPolicy") == {"tiny-job"}
    await node.releases_all()
    await world.gone("Pod", *UNWATCHED, key=key)


async def test_a_suspension_that_is_taken_back_while_pods_go_leaves_what_they_need(
    world: World, node: Kubelet
) -> None:
    key = await runs_on(world, node)
    await suspend(world, True)
    await world.gone("StatefulSet", "Deployment", "Job", key=key)
    await suspend(world, False)
    await world.look(key)
    secret = await uid(world, "Secret", "tiny-job")
    await node.releases_all()
    await world.gone("Pod", key=key)
    status = await world.runs(key)
    assert status["phase"] == "Running"
    assert await uid(world, "Secret", "tiny-job") == secret
    await suspend(world, True)
    await node.releases_all()
    await world.until(key, "Suspended")
    assert await left(world) == {CLAIM}
