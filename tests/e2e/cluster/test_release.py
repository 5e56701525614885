"""What becomes of jobs when the chart that serves them is upgraded, or goes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from .chart import CHART
from .jobs import Job, once
from .kube import Kubernetes, until
from .specs import TASKS, idle, team
from .stage import Stage

pytestmark = pytest.mark.alone
DEFINITION = "marljobs.flexmarl.io"
YOUNG = "suspendTimeout"
"""A field of the spec that the older definition of these tests lacks; a new one fills it in."""
ANOTHER: dict[str, Any] = {"image.pullPolicy": "Always"}
"""Values of the older release, by which it makes pods of jobs in another way."""
STEPS = 20
LONGEST = 500
"""Of a job that is still there when a chart was upgraded."""
ROLES = ("orchestrator", "rollout-worker", "engine", "trainer", "experience")
MADE = ("deployment", "statefulset", "service", "secret", "pvc", "networkpolicy")


def fields(cluster: Kubernetes) -> set[str]:
    schema = cluster.get("", "crd", DEFINITION)["spec"]["versions"][0]["schema"]
    spec: dict[str, Any] = schema["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return set(spec)


@contextmanager
def older() -> Iterator[Path]:
    """The chart as it was before `YOUNG` came."""
    with tempfile.TemporaryDirectory() as directory:
        chart = Path(directory, "flexmarl")
        shutil.copytree(CHART, chart)
        file = chart / "files/marljobs.yaml"
        definition = yaml.safe_load(file.read_text())
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        del schema["properties"]["spec"]["properties"][YOUNG]
        file.write_text(yaml.safe_dump(definition))
        yield chart


def test_a_job_trains_on_without_its_operator_and_after_an_upgrade_from_an_older_chart(
    stage: Stage,
) -> None:
    """Then each of its processes is killed: what starts again fits to what goes on."""
    release, job = stage.release, stage.job()
    try:
        with older() as chart:
            release.upgrade(chart=chart, **ANOTHER)
        assert YOUNG not in fields(stage.cluster)
        data = {"uri": "gym://chain_sum", "size": LONGEST * TASKS}  # each is trained once
        job.submit(team(LONGEST, data=data))
        job.trains(1)
        before = _lives(job)
        _operator(stage, 0)
        there = job.step()
        job.until(lambda: job.step() > there, "a step without an operator")
        _operator(stage, 1)
        release.upgrade()
    except BaseException:
        release.upgrade()
        raise
    assert YOUNG in fields(stage.cluster)
    assert YOUNG in job.manifest()["spec"]
    there = job.trains(job.step() + 1)
    assert _lives(job) == before
    for role in ROLES:
        job.kill(role)
        there = job.trains(there + 1)
    steps = max(STEPS, there)
    job.trains(steps)
    del job.read()["metrics"][steps:]
    once(job, steps, TASKS)


def test_the_chart_goes_without_its_jobs_which_hold_up_nothing_and_are_served_by_the_next(
    stage: Stage,
) -> None:
    cluster, release = stage.cluster, stage.release
    asleep, running = stage.job("asleep"), stage.job()
    asleep.submit(idle() | {"suspend": True})
    asleep.reaches("Suspended")
    running.submit(team(steps=100))
    running.trains(1)
    release.uninstall()
    until(
        lambda: (
            not [
                one["metadata"]["name"]
                for kind in MADE
                for one in cluster.reader.all(
                    kind, release.namespace, "app.kubernetes.io/instance=flexmarl"
                )
            ]
        ),
        "what the chart made is gone",
    )
    assert running.children()
    cluster.kubectl("delete", "namespace", running.namespace, "--timeout=60s", seconds=90)
    assert asleep.manifest()["metadata"]["uid"] == asleep.uid
    release.upgrade()
    asleep.change(suspend=False)
    asleep.reaches("Starting")


def _lives(job: Job) -> dict[str, tuple[str, int]]:
    """Pod -> uid and restarts."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sum(one["restartCount"] for one in pod["status"]["containerStatuses"]),
        )
        for pod in job.pods()
    }


def _operator(stage: Stage, replicas: int) -> None:
    release = stage.release
    name = f"deployment/{release.name}"
    where = ("-n", release.namespace)
    stage.cluster.kubectl(*where, "scale", name, f"--replicas={replicas}")
    stage.cluster.kubectl(*where, "rollout", "status", name, "--timeout=60s", seconds=70)
