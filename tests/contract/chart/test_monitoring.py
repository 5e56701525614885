"""Monitors and dashboard: what they name exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.contract.chart.helm import Helm, one
from tests.contract.chart.readme import CHART

METRIC = re.compile(r"\bflexmarl_[a-z_]+")
ON = {
    "monitoring.podMonitor.enabled": True,
    "monitoring.serviceMonitor.enabled": True,
    "monitoring.dashboard.enabled": True,
}
DASHBOARDS = sorted((CHART / "files/dashboards").glob("*.json"))


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_shows_metrics_that_exist(repo: Path, path: Path) -> None:
    sources = [*repo.glob("services/*/src/**/*.py"), *repo.glob("operator/src/**/*.py")]
    known = {name for file in sources for name in METRIC.findall(file.read_text())}
    dashboard = json.loads(path.read_text())
    shown = {
        re.sub(r"_(sum|count|bucket)$", "", name)
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
        for name in METRIC.findall(target["expr"])
    }
    assert shown
    assert shown - known == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_of_a_dashboard_do_not_overlap(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in json.loads(path.read_text())["panels"]]
    assert len(ids) == len(set(ids))
    for panel in json.loads(path.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_config_map_carries_the_dashboards_as_they_are(each_helm: Helm) -> None:
    found = one(each_helm.render(ON), "ConfigMap", "demo-flexmarl-dashboard")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in found["data"].items()} == {
        f"flexmarl-{path.name}": json.loads(path.read_text()) for path in DASHBOARDS
    }


def test_the_service_monitor_finds_the_controller(helm: Helm) -> None:
    manifests = helm.render(ON)
    monitor = one(manifests, "ServiceMonitor", "demo-flexmarl")["spec"]
    service = one(manifests, "Service", "demo-flexmarl")
    pod = one(manifests, "Deployment", "demo-flexmarl")["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    [port] = service["spec"]["ports"]
    assert monitor["endpoints"][0]["port"] == port["name"]
    assert port["targetPort"] in {each["name"] for each in pod["spec"]["containers"][0]["ports"]}


def test_the_pod_monitor_looks_where_jobs_are(helm: Helm) -> None:
    def where(**values: object) -> object:
        manifests = helm.render({**ON, **{k.replace("_", "."): v for k, v in values.items()}})
        return one(manifests, "PodMonitor", "demo-flexmarl-jobs")["spec"]["namespaceSelector"]

    assert where() == {"any": True}
    assert where(watch_namespaces=["blue"]) == {"matchNames": ["blue"]}
