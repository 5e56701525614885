"""Mistakes in pod templates before a real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.contract.controller.conftest import World
from tests.contract.controller.test_looks import job

from flexmarl.controller.render import WORKLOADS

MAIN = {"name": "main"}
UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"spec": {"containrs": []}}, 'unknown field "spec.template.spec.containrs"'),
    ({"spec": {"containers": [{**MAIN, "resource": {}}]}}, 'containers[0].resource"'),
    ({"spec": {"containers": [{**MAIN, "env": [{"name": "A", "value": 1}]}]}}, "env.value"),
    ({"spec": {"nodeSelector": ["x"]}}, "nodeSelector"),
    ({"spec": {"priorityClassName": 3}}, "priorityClassName"),
    ({"spec": {"containers": [{**MAIN, "ports": [{"containerPort": 123456}]}]}}, "containerPort"),
    ({"spec": {"containers": [{**MAIN, "imagePullPolicy": "Maybe"}]}}, "imagePullPolicy"),
    ({"metadata": {"labels": {"a": 1}}}, "labels"),
]
MISSHAPEN: list[tuple[dict[str, Any], str]] = [
    ({"metadat": {"labels": {"a": "b"}}}, 'did you mean "metadata"?'),
    ({"metadata": None}, ""),  # the API server drops it
    ({"metadata": {"labels": "x"}}, "template.metadata.labels: "),
    ({"spec": "x"}, "template.spec: "),
    ({"spec": {"containers": "main"}}, "template.spec.containers: "),
    ({"spec": {"containers": [None]}}, "template.spec.containers[0]: "),
    ({"spec": {"containers": [{"name": ["main"]}]}}, "template.spec.containers[0].name: "),
    ({"spec": {"containers": {"name": "main"}}}, "template.spec.containers: "),
]


async def _fails(world: World, role: str, template: dict[str, Any]) -> tuple[str, str]:
    """Reason and message, once the job has failed; nothing was made of it."""
    key = await world.submit(job(roles={role: {"template": template}}))
    status = await world.look(key)
    for kind in WORKLOADS:
        assert not await world.names(kind)
    assert status["phase"] == "Failed", status
    return status["reason"], status["message"]


@pytest.mark.parametrize(("template", "words"), UNFIT, ids=json.dumps)
async def test_what_the_schema_of_pods_forbids_ends_the_job_in_words(
    world: World, template: dict[str, Any], words: str
) -> None:
    reason, message = await _fails(world, "worker", template)
    assert reason == "TemplateInvalid"
    assert words in message
    assert message.endswith("mend the template of the role or pool")


async def test_what_only_the_api_server_finds_wrong_with_a_pool_is_told_by_its_field(
    world: World,
) -> None:
    """No rule knows it."""
    pool = {"name": "fast", "role": "engine", "nodeSelector": {"vendor..example/gpu": "fast"}}
    made = job(pools=[pool])
    made["spec"]["policies"][0]["pools"] = ["fast"]
    key = await world.submit(made)
    status = await world.look(key)
    for kind in WORKLOADS:
        assert not await world.names(kind)
    assert (status["phase"], status["reason"]) == ("Failed", "TemplateInvalid"), status
    assert "mend nodeSelector of pool fast, or a template" in status["message"]


@pytest.mark.parametrize("role", ["worker", "orchestrator"])
@pytest.mark.parametrize(("template", "words"), MISSHAPEN, ids=json.dumps)
async def test_what_cannot_be_laid_over_a_pod_is_told_before_anything_is_made(
    world: World, role: str, template: dict[str, Any], words: str
) -> None:
    reason, message = await _fails(world, role, template)
    assert reason == "InvalidSpec"
    assert words in message


async def test_what_nobody_has_foreseen_is_told_and_the_job_can_be_suspended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await world.submit(job(gang={"kind": "volcano"}))

    def broken(*_: Any) -> Any:
        raise KeyError("labels")

    with monkeypatch.context() as patched:
        patched.setattr("flexmarl.controller.reconcile.render", broken)
        with pytest.raises(KeyError):
            await world.look(key)
        found = await world.cluster.call("GET", f"{world.path}/tiny")
        status = found["status"]
        assert (status["phase"], status["reason"]) == ("Starting", "ControllerFailed")
        assert "KeyError: 'labels'" in status["message"]
        await world.change(f"{world.path}/tiny", {"spec": {"suspend": True}})
        await world.until(key, "Suspended")
    await world.change(f"{world.path}/tiny", {"spec": {"suspend": False}})
    status = await world.look(key)
    assert status["phase"] == "Starting"
    assert status["reason"] != "ControllerFailed"
