"""What the chart gives to the controller is what the controller's code takes and needs."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.contract.chart.helm import Helm, Manifest, one, pods
from tests.contract.chart.test_manifests import CASES
from tests.contract.chart.test_rights import bound, rights

from flexmarl.controller.apply import UNWATCHED
from flexmarl.controller.cluster import PLURALS
from flexmarl.controller.render import WORKLOADS
from flexmarl.controller.settings import ControllerSettings
from flexmarl.controller.watching import RESOURCES

KINDS = {plural: kind for kind, (_, plural) in PLURALS.items()} | {"podgroups": "PodGroup"}


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


def test_it_may_do_what_its_code_does_and_nothing_else(helm: Helm, repo: Path) -> None:
    files = list(repo.glob("operator/src/flexmarl/controller/**/*.py"))
    text = "\n".join(file.read_text() for file in files)
    rendered = "\n".join(file.read_text() for file in files if file.parent.name == "render")
    used = {(kind, verb) for kind in RESOURCES for verb in ("list", "watch")}
    used |= {(kind, verb) for kind in UNWATCHED for verb in ("list", "delete")}
    used |= {(kind, "delete") for kind in WORKLOADS}
    used |= _named(text)
    for kind in re.findall(r'(?:"kind": |kind=)"([A-Z]\w+)"', rendered):
        if kind not in ("MARLJob", "PodGroup"):
            used |= {(kind, "create"), (kind, "patch")}
    used |= {("PodGroup", verb) for verb in ("get", "create", "delete")}
    used |= {("Event", "create"), ("Pod/log", "get"), ("MARLJob/status", "patch")}
    used.add(("MARLJob/finalizers", "update"))
    granted = {
        (_kind(resource), verb)
        for _, resource, verb in rights(bound(helm.render(), "demo-flexmarl"))
    }
    assert granted == used


def _named(text: str) -> set[tuple[str, str]]:
    """Kinds that a call names itself."""
    calls = re.findall(r'cluster\.(get|delete|listed)\(\s*"(\w+)"', text)
    return {(kind, "list" if verb == "listed" else verb) for verb, kind in calls}


def _kind(resource: str) -> str:
    name, slash, below = resource.partition("/")
    return KINDS[name] + slash + below
