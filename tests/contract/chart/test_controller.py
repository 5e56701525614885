"""What the chart gives to the controller is what the controller's code takes and needs."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.contract.chart.helm import Helm, Manifest, one, pods
from tests.contract.chart.test_manifests import CASES
from tests.contract.chart.test_rights import bound, rights

from flexmarl.controller.settings import ControllerSettings

APPLIED = {
    "configmaps": "ConfigMap",
    "deployments": "Deployment",
    "jobs": "Job",
    "networkpolicies": "NetworkPolicy",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "podgroups": "PodGroup",
    "secrets": "Secret",
    "serviceaccounts": "ServiceAccount",
    "services": "Service",
    "statefulsets": "StatefulSet",
}
"""Resource -> kind of what the controller applies."""


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


def test_it_may_apply_what_its_code_renders_and_nothing_else(helm: Helm, repo: Path) -> None:
    sources = repo.glob("operator/src/flexmarl/controller/render/**/*.py")
    text = "\n".join(file.read_text() for file in sources)
    rendered = set(re.findall(r'(?:"kind": |kind=)"([A-Z]\w+)"', text)) - {"MARLJob"}
    granted = rights(bound(helm.render(), "demo-flexmarl"))
    for verb in ("create", "patch"):
        may = {r for group, r, v in granted if v == verb and r not in {"events", "marljobs/status"}}
        assert {APPLIED[resource] for resource in may} == rendered, verb
