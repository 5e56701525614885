"""What the chart gives to the controller is what the controller's code takes and needs."""

from __future__ import annotations

import json

from tests.contract.chart.helm import Helm, Manifest, one, pods
from tests.contract.chart.test_manifests import CASES

from flexmarl.controller.settings import ControllerSettings


def environment(manifests: list[Manifest]) -> dict[str, str]:
    [container] = pods(manifests)["Deployment/demo-flexmarl"]["containers"]
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def test_every_variable_is_one_that_it_reads(helm: Helm) -> None:
    known = {f"FLEXMARL_{name.upper()}" for name in ControllerSettings.model_fields}
    assert set(environment(helm.render())) <= known


def test_it_understands_every_value(helm: Helm) -> None:
    given = environment(helm.render(CASES["everything"]))
    values = {
        name.removeprefix("FLEXMARL_").lower(): json.loads(value)
        if value.startswith(("[", "{"))
        else value
        for name, value in given.items()
    }
    settings = ControllerSettings.model_validate(values)
    assert set(settings.images) == {"slim", "trainer", "vllm"}
    assert settings.image_pull_secrets == ["one", "two"]
    assert settings.metrics_from == [{"namespaceSelector": {"matchLabels": {"name": "m"}}}]
    assert settings.network_policies is True


def test_it_listens_where_the_probes_look(helm: Helm) -> None:
    manifests = helm.render()
    given = environment(manifests)
    [container] = one(manifests, "Deployment", "demo-flexmarl")["spec"]["template"]["spec"][
        "containers"
    ]
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert ports == {
        "health": given["FLEXMARL_HEALTH_PORT"],
        "metrics": given["FLEXMARL_METRICS_PORT"],
    }
