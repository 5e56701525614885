"""NetworkPolicies that an upgrade of the chart switches off under a job that has them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.controller.conftest import IMAGES, World
from tests.contract.controller.test_looks import job

from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.names import JOB_LABEL
from flexmarl.controller.reconcile import Reconciler
from flexmarl.controller.settings import ControllerSettings


async def test_they_go_and_foreign_ones_stay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flexmarl.controller.apply.YOUNG_SECONDS", 0.0)
    key = await world.submit(job())
    await world.look(key)
    assert "tiny-job" in await world.names("NetworkPolicy")
    mine: dict[str, Any] = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "mine", "namespace": world.namespace, "labels": {JOB_LABEL: "tiny"}},
        "spec": {"podSelector": {}},
    }
    await world.cluster.create(mine)
    settings = ControllerSettings(
        images=IMAGES, namespaces=[world.namespace], network_policies=False
    )
    async with Orchestrators() as asker:
        world.reconciler = Reconciler(settings, world.cluster, world.cache, asker)
        await world.look(key)
        listed = await world.cluster.listed(
            "NetworkPolicy", world.namespace, labels=JOB_LABEL, metadata_only=True
        )
        assert world.reconciler.compare("NetworkPolicy", listed) == {key}
        await world.look(key)
    assert await world.names("NetworkPolicy") == {"mine"}
    assert await world.names("Job") == {"tiny-orchestrator"}
