"""What a job's pods need stays while any of them is there, and comes back; then all of it goes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.controller.conftest import World
from tests.contract.controller.kubelet import Kubelet, kubelet
from tests.contract.controller.test_life import suspend, uid
from tests.contract.controller.test_looks import KINDS, job
from tests.contract.controller.test_rights import GANGS, define_gangs

from flexmarl.controller.apply import UNWATCHED
from flexmarl.controller.cache import Key
from flexmarl.controller.names import Manifest

CLAIM = "PersistentVolumeClaim"
POOLS = [{"name": "fast", "role": "engine", "min": 2, "max": 4}]


def pooled(**spec: Any) -> Manifest:
    """A job whose gang is as large as its pool is at least."""
    made = job(pools=POOLS, gang={"kind": "coscheduling"}, **spec)
    for policy in made["spec"]["policies"]:
        policy["pools"] = ["fast"]
    return made


async def gang(world: World) -> Manifest | None:
    """The only one."""
    at = f"/apis/{GANGS}/v1alpha1/namespaces/{world.namespace}/podgroups"
    found: list[Manifest] = (await world.cluster.call("GET", at))["items"]
    return found[0] if found else None


async def size(world: World) -> int:
    found = await gang(world)
    return 0 if found is None else int(found["spec"]["minMember"])


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


async def test_what_was_made_in_part_before_a_second_suspension_goes_as_well(world: World) -> None:
    await define_gangs(world)
    key = await world.submit(pooled())
    await world.until(key, "PodsNotReady")
    await suspend(world, True)
    await world.until(key, "Suspended")
    assert await left(world) == {CLAIM}
    await world.limit("none", {"count/services": "0"})
    await suspend(world, False)
    await world.until(key, "QuotaExceeded")
    assert await size(world) == 6
    await suspend(world, True)
    await world.until(key, "Suspended")
    assert await left(world) == {CLAIM}
    assert await size(world) == 0


async def test_a_gang_of_another_size_is_made_anew_unless_it_has_pods(world: World) -> None:
    await define_gangs(world)
    await world.limit("none", {"count/services": "0"})
    key = await world.submit(pooled())
    await world.until(key, "QuotaExceeded")
    assert await size(world) == 6
    await world.change(f"{world.path}/tiny", {"spec": {"pools": [{**POOLS[0], "min": 1}]}})
    await world.until(key, "QuotaExceeded")
    assert await size(world) == 5
    quota = f"/api/v1/namespaces/{world.namespace}/resourcequotas/none"
    await world.cluster.call("DELETE", quota)
    await world.until(key, "PodsNotReady")
    await world.pod("trainer")
    await world.change(f"{world.path}/tiny", {"spec": {"pools": [{**POOLS[0], "min": 3}]}})
    await world.look(key)
    assert await size(world) == 5


async def test_a_claim_or_a_gang_that_somebody_deletes_is_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told of it; pods that find no node are the reason to ask."""
    await define_gangs(world)
    key = await world.submit(pooled())
    await world.until(key, "PodsNotReady")
    await world.pod("trainer")
    made = await gang(world)
    assert made is not None
    claim, group = await uid(world, CLAIM, "tiny-run"), made["metadata"]["uid"]
    await world.cluster.call(
        "DELETE", f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims/tiny-run"
    )
    await world.cluster.call(
        "DELETE",
        f"/apis/{GANGS}/v1alpha1/namespaces/{world.namespace}/podgroups/tiny-job",
    )
    await world.gone(CLAIM)
    await world.look(key)
    assert await gang(world) is None, "once a minute is enough"
    monkeypatch.setattr("flexmarl.controller.apply.ASK_SECONDS", 0.0)
    await world.look(key)
    made = await gang(world)
    assert made is not None
    assert made["metadata"]["uid"] != group
    assert await uid(world, CLAIM, "tiny-run") not in ("", claim)
