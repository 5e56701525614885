"""What pods said is kept when a job ends, and keeps no pod from going."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.contract.controller.conftest import World, ended, running
from tests.contract.controller.kubelet import Kubelet, kubelet
from tests.contract.controller.test_looks import job

from flexmarl.controller import evidence
from flexmarl.controller.cache import Key
from flexmarl.controller.cluster import RefusedError
from flexmarl.controller.names import ROLES

ENGINE = "tiny-engine-solver-0"


async def fails(world: World, node: Kubelet) -> Key:
    """A job whose engine was restarted too often; its status says so."""
    key = await world.submit(job())
    await world.runs(key)
    await node.takes_all()
    crashed = running(restartCount=4, lastState=ended(1, "boom"))
    await world.says(ENGINE, crashed, ip="127.0.0.1")
    node.logs = {(pod, "main", False): b"fine\n" for pod in await world.names("Pod")}
    node.logs |= {(ENGINE, "main", False): b"again\n", (ENGINE, "main", True): b"the crash\n"}
    status = await world.until(key, "RestartsExceeded")
    assert status["phase"] == "Failed"
    return key


async def roles(world: World) -> dict[str, str]:
    """Of what is kept, by entry."""
    found = await world.cluster.get("ConfigMap", world.namespace, "tiny-evidence")
    assert found is not None
    said: dict[str, str] = json.loads(found["metadata"]["annotations"][ROLES])
    return said


async def kept(world: World) -> dict[str, str]:
    found = await world.cluster.get("ConfigMap", world.namespace, "tiny-evidence")
    data: dict[str, str] = (found or {}).get("data", {})
    return data


async def pods_go(world: World, node: Kubelet, key: Key) -> None:
    await world.gone("StatefulSet", "Deployment", "Job", key=key)
    end = time.monotonic() + 60
    while await world.names("Pod"):
        assert time.monotonic() < end
        await node.releases_all()  # those that are told by now that they are to go
        await world.look(key)


async def test_the_crash_is_kept_and_everyone_s_last_words(world: World, tmp_path: Path) -> None:
    async with kubelet(world, tmp_path) as node:
        key = await fails(world, node)
        pods = await world.names("Pod")
        assert len(pods) == 6
        await world.look(key)
        said = await kept(world)
        assert set(said) == {f"{pod}.log" for pod in pods} | {f"{ENGINE}.previous.log"}
        assert said[f"{ENGINE}.previous.log"] == "the crash\n"
        assert (await roles(world))[f"{ENGINE}.previous.log"] == "engine"
        assert set(await roles(world)) == set(said)
        await pods_go(world, node, key)
        assert await kept(world) == said


async def test_what_a_node_says_in_place_of_a_log_is_not_kept(world: World, tmp_path: Path) -> None:
    async with kubelet(world, tmp_path) as node:
        key = await fails(world, node)
        removed = b"unable to retrieve container logs for containerd://4f2a"
        node.logs[ENGINE, "main", True] = removed
        await world.look(key)
        assert set(await kept(world)) == {f"{pod}.log" for pod in await world.names("Pod")}


@pytest.mark.parametrize("why", ["a quota", "a silent node"])
async def test_evidence_that_cannot_be_kept_holds_no_pods(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(evidence, "LOG_SECONDS", 0.2)
    monkeypatch.setattr(evidence, "SECONDS", 1.0)
    async with kubelet(world, tmp_path) as node:
        key = await fails(world, node)
        if why == "a quota":
            await world.limit("none", {"count/configmaps": "1"})
        node.silent = why == "a silent node"
        await pods_go(world, node, key)
        assert not await kept(world)


async def test_evidence_is_not_written_over_what_is_a_user_s(world: World, tmp_path: Path) -> None:
    metadata = {"name": "tiny-evidence", "namespace": world.namespace}
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"mine": "1"}}
    await world.cluster.create(mine)
    async with kubelet(world, tmp_path) as node:
        key = await fails(world, node)
        await pods_go(world, node, key)
        assert await kept(world) == {"mine": "1"}


async def test_what_one_pod_says_at_length_takes_no_room_from_others(
    world: World, tmp_path: Path
) -> None:
    async with kubelet(world, tmp_path) as node:
        key = await fails(world, node)
        node.logs[ENGINE, "main", True] = b"\xff\x00" * (1 << 20) + b"end"
        await world.look(key)
        said = await kept(world)
        assert len(said) == 7
        assert said[f"{ENGINE}.previous.log"].startswith("\N{REPLACEMENT CHARACTER}")


async def test_a_passing_refusal_is_tried_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kubelet(world, tmp_path) as node:
        key = await fails(world, node)
        refused = RefusedError(500, "InternalError", "etcd is away")
        apply = world.cluster.apply

        async def away(*_: Any, **__: Any) -> Any:
            raise refused

        monkeypatch.setattr(world.cluster, "apply", away)
        await world.look(key)
        assert await world.names("StatefulSet")
        monkeypatch.setattr(world.cluster, "apply", apply)
        await world.look(key)
        assert await kept(world)
