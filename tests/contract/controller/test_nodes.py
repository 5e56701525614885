"""Nodes that are lost, and pods that fetch on them, at a real API server with Kubernetes' own
controllers of nodes and of pods that are left over."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.contract.controller.conftest import World, running
from tests.contract.controller.kubelet import Kubelet, kubelet
from tests.contract.controller.test_looks import job

from flexmarl.contracts.preparation import CONTAINER, Fetching
from flexmarl.controller import questions
from flexmarl.controller.clock import stamp

WORDS = "Kubelet stopped posting node status."


@pytest.fixture
async def node(world: World, tmp_path: Path) -> AsyncIterator[Kubelet]:
    async with kubelet(world, tmp_path) as found:
        yield found


async def says(world: World, pod: str, began: float, *first: dict[str, object]) -> None:
    """Of a pod that is not ready since `began`."""
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": stamp(began)}
    waits = running(state={"waiting": {"reason": "PodInitializing"}}, ready=False)
    status = {
        "phase": "Pending",
        "conditions": [condition],
        "initContainerStatuses": [*first],
        "containerStatuses": [waits],
    }
    at = f"/api/v1/namespaces/{world.namespace}/pods/{pod}/status"
    await world.change(at, {"status": status})


async def test_a_node_that_is_not_ready_is_told_by_name_and_state(
    world: World, node: Kubelet
) -> None:
    key = await world.submit(job())
    await world.look(key)
    trainer = await world.pod("trainer")
    await node.takes_all()
    now = time.time()
    condition = {
        "type": "Ready",
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": WORDS,
        "lastHeartbeatTime": stamp(now),
        "lastTransitionTime": stamp(now),
    }
    at = f"/api/v1/nodes/{world.namespace}/status"
    await world.change(at, {"status": {"conditions": [condition]}})
    await says(world, trainer, now - 60)
    status = await world.until(key, "NodeNotReady")
    assert status["phase"] == "Starting"
    assert f": {world.namespace} is not ready (NodeStatusUnknown: {WORDS})" in status["message"]
    ready = next(one for one in status["conditions"] if one["type"] == "PodsReady")
    assert ready["reason"] == "NodeNotReady"


async def test_how_far_a_fetch_is_stands_in_the_condition_and_is_asked_for_seldom(
    world: World, node: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await world.submit(job())
    await world.look(key)
    trainer = await world.pod("trainer")
    await node.takes_all()

    def far(mib: int) -> bytes:
        said = {"event": Fetching.EVENT, **asdict(Fetching("hf://org/model", mib, 700, 50.0))}
        return f"looking\n{json.dumps(said)}\n".encode()

    began = time.time() - 60
    state = {"running": {"startedAt": stamp(began)}}
    await says(world, trainer, began, running(CONTAINER, state=state, ready=False))
    node.logs[trainer, CONTAINER, False] = far(100)

    async def fetched() -> str:
        status = await world.look(key)
        (found,) = (one for one in status["conditions"] if one["type"] == "ModelsFetched")
        assert (found["status"], found["reason"]) == ("False", "Fetching")
        return str(found["message"])

    said = await fetched()
    assert f"{trainer}: 100 of 700 MiB of hf://org/model, 50 MiB/s" in said
    version = await _version(world)
    node.logs[trainer, CONTAINER, False] = far(300)
    assert await fetched() == said
    assert await _version(world) == version
    monkeypatch.setattr(questions, "FETCH_SECONDS", 0.0)
    there = world.cache.objects(key).job
    assert there is not None
    world.reconciler._questions.forget(there["metadata"]["uid"])
    assert "300 of 700 MiB" in await fetched()
    node.silent = True
    monkeypatch.setattr(questions, "LOG_SECONDS", 0.3)
    async with asyncio.timeout(30):
        assert "MiB" not in await fetched()


async def _version(world: World) -> str:
    found = await world.cluster.call("GET", f"{world.path}/tiny")
    return str(found["metadata"]["resourceVersion"])
