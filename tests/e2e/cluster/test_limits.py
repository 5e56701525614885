"""How long a job may run, and how long it stays after its end."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from .kube import until
from .specs import idle, team
from .stage import Stage

MOMENT = 3.0
"""Seconds: times in a status are whole, and a look takes its own."""


def seconds(status: dict[str, str], since: str, until: str) -> float:
    moments = [datetime.fromisoformat(status[name]).timestamp() for name in (since, until)]
    return moments[1] - moments[0]


@pytest.mark.long
def test_a_job_that_runs_for_too_long_fails_and_its_pods_go(stage: Stage) -> None:
    job = stage.job()
    job.submit(team(steps=10_000) | {"activeDeadlineSeconds": 60})
    status = job.reaches("Failed")
    assert status["reason"] == "DeadlineExceeded"
    assert "60 s" in status["message"]
    assert seconds(status, "startTime", "completionTime") >= 60 - MOMENT
    job.until(lambda: job.pods() == [], "its pods are gone", 90)
    assert job.status()["completionTime"] == status["completionTime"]


@pytest.mark.light
def test_a_job_goes_some_seconds_after_its_end_and_not_before(stage: Stage) -> None:
    job = stage.job()
    refused = {"spec": {"containers": [{"name": "main", "ports": [{"containerPort": 123456}]}]}}
    job.submit(idle(worker=refused) | {"ttlSecondsAfterFinished": 20})
    job.reaches("Failed")
    ended = time.monotonic()
    name = ("get", "marljob", job.name, "--ignore-not-found", "-o", "name")
    until(lambda: not stage.cluster.kubectl("-n", job.namespace, *name), "it is gone", seconds=90)
    assert time.monotonic() - ended >= 20 - MOMENT
    until(lambda: job.children() == [], "with what it owned", seconds=60)
