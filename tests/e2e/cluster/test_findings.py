"""What stands in a job's way is said in its status: a reason, and a sentence that says what to do.

The pods that a case is not about are made and never start.
"""

from __future__ import annotations

from typing import Any

import pytest

from .jobs import Job
from .specs import idle
from .stage import Stage

SECONDS = 90.0
NOWHERE = "redis://10.96.255.250:6379"
"""An address of the range of Services that none has."""

pytestmark = pytest.mark.light


def says(job: Job, reason: str) -> str:
    """The sentence that comes with this reason."""
    status: dict[str, Any] = {}

    def said() -> bool:
        status.update(job.status())
        return bool(status.get("reason") == reason)

    job.until(said, reason, SECONDS)
    [pods] = [one for one in status["conditions"] if one["type"] == "PodsReady"]
    assert (pods["status"], pods["reason"]) == ("False", reason)
    assert pods["message"] == status["message"]
    return str(status["message"])


def template(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", **container}]}}


def test_an_image_that_cannot_be_pulled(stage: Stage) -> None:
    job = stage.job()
    image = job.images["slim"].partition("@")[0] + "-of-nobody:1"
    job.submit(idle(experience=template(image=image)))
    said = says(job, "ImagePullFailed")
    assert f"{job.name}-experience" in said
    assert image in said
    assert "push the image" in said


def test_a_selector_that_no_node_satisfies(stage: Stage) -> None:
    job = stage.job()
    spec = idle()
    selector = {"example.com/shelf": "none"}
    spec["pools"] = [{"name": "shelf", "role": "engine", "nodeSelector": selector, "max": 2}]
    del spec["roles"]["engine"]
    for policy in spec["policies"]:
        policy["pools"] = ["shelf"]
    job.submit(spec)
    said = says(job, "NoMatchingNode")
    assert "shelf" in said
    assert "mend nodeSelector or tolerations of the pool" in said


def test_more_devices_than_there_are(stage: Stage) -> None:
    job = stage.job()
    spec = idle()
    devices = {"gpus": 64, "gpuResource": "example.com/gpu"}
    spec["pools"] = [{"name": "big", "role": "engine", **devices}]
    del spec["roles"]["engine"]
    for policy in spec["policies"]:
        policy["pools"] = ["big"]
    job.submit(spec)
    said = says(job, "InsufficientCapacity")
    assert "1 pods wanted, 0 placed: no node has enough example.com/gpu left" in said
    assert "64 example.com/gpu wanted, 0 free of 0" in said


def test_a_quota_that_is_used_up(stage: Stage) -> None:
    job = stage.job()
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": {"pods": "2"}},
    }
    job.cluster.apply(job.namespace, quota)
    job.submit(idle())
    said = says(job, "QuotaExceeded")
    assert "exceeded quota: few" in said
    assert "raise the quota" in said


def test_a_secret_that_is_missing(stage: Stage) -> None:
    job = stage.job()
    spec = idle(experience={})
    spec["store"] = {"secretRef": {"name": "my-store"}}
    job.submit(spec)
    said = says(job, "SecretMissing")
    assert 'secret "my-store" not found' in said
    assert "create the Secret" in said
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "my-store"},
        "stringData": {"url": NOWHERE},
    }
    job.cluster.apply(job.namespace, secret)
    job.until(lambda: job.status().get("reason") != "SecretMissing", "another reason", SECONDS)


def test_a_store_that_does_not_answer(stage: Stage) -> None:
    job = stage.job()
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "my-store"},
        "stringData": {"url": NOWHERE},
    }
    job.cluster.apply(job.namespace, secret)
    spec = idle(experience={})
    spec["store"] = {"secretRef": {"name": "my-store"}}
    job.submit(spec)
    assert "10.96.255.250" in says(job, "StoreUnreachable")


def test_a_template_that_the_cluster_refuses(stage: Stage) -> None:
    job = stage.job()
    job.submit(idle(worker=template(ports=[{"containerPort": 123456}])))
    status = job.reaches("Failed", SECONDS)
    assert status["reason"] == "TemplateInvalid"
    assert "123456" in status["message"]
    assert "mend the template" in status["message"]


def test_a_pod_that_the_namespace_refuses(stage: Stage) -> None:
    job = stage.job()
    root = {"securityContext": {"runAsNonRoot": False, "runAsUser": 0}}
    job.submit(idle(worker=template(**root)))
    said = says(job, "PodSecurity")
    assert 'violates PodSecurity "restricted' in said
    assert "mend roles.*.template" in said
