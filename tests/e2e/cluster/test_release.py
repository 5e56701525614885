"""The chart with its controller: a first job, upgrades of the definition, uninstalling."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from .chart import CHART, Release
from .jobs import Job
from .kube import Kubernetes, until
from .specs import team

pytestmark = pytest.mark.alone
DEFINITION = "marljobs.flexmarl.io"
YOUNG = "seed"
"""A field of the spec that the older definition of these tests lacks."""


def fields(cluster: Kubernetes) -> set[str]:
    schema = cluster.get("default", "crd", DEFINITION)["spec"]["versions"][0]["schema"]
    spec: dict[str, Any] = schema["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return set(spec)


def older(directory: Path) -> Path:
    """The chart as it was before `YOUNG` came."""
    chart = directory / "flexmarl"
    shutil.copytree(CHART, chart)
    file = chart / "files/marljobs.yaml"
    definition = yaml.safe_load(file.read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"][YOUNG]
    file.write_text(yaml.safe_dump(definition))
    return chart


def test_the_job_of_helm_test_is_complete(release: Release) -> None:
    assert "Complete" in release.test()


def test_an_upgrade_of_the_chart_upgrades_the_definition(
    cluster: Kubernetes, release: Release, tmp_path: Path
) -> None:
    release.upgrade(chart=older(tmp_path))
    assert YOUNG not in fields(cluster)
    release.upgrade()
    assert YOUNG in fields(cluster)


def test_uninstalling_leaves_the_definition_and_the_jobs_and_nothing_else(
    cluster: Kubernetes, release: Release, namespace: str
) -> None:
    job = _suspended()
    cluster.apply(namespace, job)
    release.uninstall()
    left = "deployments,statefulsets,services,secrets,persistentvolumeclaims,networkpolicies"
    said = "--selector=app.kubernetes.io/instance=flexmarl"
    until(
        lambda: not cluster.kubectl("-n", release.namespace, "get", left, said, "-o", "name"),
        "what the chart made is gone",
    )
    assert cluster.get(namespace, "marljob", job["metadata"]["name"])
    release.upgrade()
    assert cluster.get(namespace, "marljob", job["metadata"]["name"])


def test_nothing_hangs_when_the_chart_and_then_the_namespace_of_a_running_job_go(
    cluster: Kubernetes, release: Release, namespace: str
) -> None:
    job = Job(cluster, release.images, namespace)
    job.submit(team(steps=100))
    job.trains(1)
    release.uninstall()
    assert job.children(), "the job does not go with the chart"
    cluster.kubectl("delete", "namespace", namespace, "--timeout=60s", seconds=90)
    release.upgrade()


def _suspended() -> dict[str, Any]:
    policy = {
        "name": "solver",
        "model": {"uri": "random://llama?hidden=16&layers=1&heads=2&context=512"},
        "engine": {"kind": "scripted"},
    }
    spec = {
        "suspend": True,
        "policies": [policy],
        "agents": [{"name": "solver", "policy": "solver"}],
        "workflow": {"name": "single"},
        "data": {"uri": "gym://chain_sum"},
        "reward": {"name": "gym"},
        "steps": 1,
    }
    return {
        "apiVersion": "flexmarl.io/v1alpha1",
        "kind": "MARLJob",
        "metadata": {"name": "asleep"},
        "spec": spec,
    }
