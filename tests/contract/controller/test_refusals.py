"""What the API server, or who it asks, does not take: for good, or for now."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.contract.controller.conftest import World
from tests.contract.controller.test_looks import job

from flexmarl.controller.beforehand import pods_are_accepted
from flexmarl.controller.cache import Key
from flexmarl.controller.cluster import Cluster, RefusedError
from flexmarl.controller.names import Manifest
from flexmarl.controller.render import WORKLOADS

TEMPLATE = {"metadata": {"labels": {"team": "blue"}}}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


class Refusing(Cluster):
    """An API server that refuses every object in these words."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(None)
        self._error = RefusedError(status, "", words)

    async def call(self, method: str, at: str, **more: Any) -> Manifest:
        raise self._error


def deployment() -> Manifest:
    metadata = {"name": "tiny-worker", "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}


@pytest.mark.parametrize(
    ("status", "words", "reason"),
    [
        (422, "spec.template.spec.containers[0].image: Required value", "TemplateInvalid"),
        (400, 'strict decoding error: unknown field "spec.containrs"', "TemplateInvalid"),
        (400, 'admission webhook "policy.example" denied the request', "AdmissionDenied"),
        (400, "admission webhook does not support dry run", "CreateFailed"),
        (422, "ValidatingAdmissionPolicy 'x' with binding 'y' denied request", "AdmissionDenied"),
        (403, "deployments.apps is forbidden: exceeded quota: few", "QuotaExceeded"),
        (403, "namespace default is being terminated", "CreateFailed"),
        (401, "Unauthorized", "CreateFailed"),
    ],
)
async def test_only_what_is_wrong_with_the_template_ends_a_job(
    status: int, words: str, reason: str
) -> None:
    (found,) = await pods_are_accepted(Refusing(status, words), deployment())
    assert (found.reason, found.fatal) == (reason, reason == "TemplateInvalid")
    assert words in found.message


@pytest.mark.parametrize("status", [429, 500, 503, 504])
async def test_what_may_soon_be_answered_is_asked_again(status: int) -> None:
    with pytest.raises(RefusedError):
        await pods_are_accepted(Refusing(status, "failed calling webhook"), deployment())


async def test_an_object_that_does_not_fit_is_refused_and_no_outage(world: World) -> None:
    """The API server answers such an apply with 500."""
    with pytest.raises(RefusedError) as refused:
        await world.cluster.apply({**deployment(), "spec": {"replcas": 1}})
    assert (refused.value.status, refused.value.passing) == (500, False)


async def test_no_pod_is_started_without_its_fence(world: World) -> None:
    await world.limit("open", {"count/networkpolicies.networking.k8s.io": "0"})
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "any", "namespace": world.namespace},
        "spec": {"podSelector": {}},
    }
    end = time.monotonic() + 60
    while True:  # a quota counts from when its controller has seen it
        try:
            await world.cluster.try_to_make(policy)
        except RefusedError as error:
            if "exceeded quota" in str(error):
                break
        assert time.monotonic() < end
    key = await world.submit(job())
    status = await world.look(key)
    assert (status["phase"], status["reason"]) == ("Starting", "QuotaExceeded")
    assert "NetworkPolicy tiny-job" in status["message"]
    for kind in WORKLOADS:
        assert not await world.names(kind)
    where = f"/api/v1/namespaces/{world.namespace}/resourcequotas/open"
    await world.cluster.call("DELETE", where)
    await world.until(key, "PodsNotReady")
    assert await world.names("Job") == {"tiny-orchestrator"}


async def test_a_webhook_that_is_down_ends_no_job_with_a_template(world: World) -> None:
    webhook = {
        "name": "injector.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 1,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        "rules": [
            {
                "apiGroups": ["apps"],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["deployments"],
            }
        ],
    }
    kind = "MutatingWebhookConfiguration"
    body = {"metadata": {"name": f"down-{world.namespace}"}, "kind": kind, "webhooks": [webhook]}
    where = f"{ADMISSION}/mutatingwebhookconfigurations"
    await world.cluster.call("POST", where, body=body)
    try:
        await _effective(world)
        key = await world.submit(job(roles={"worker": {"template": TEMPLATE}}))
        for _ in range(3):
            status = await _looked(world, key)
            assert status.get("phase") != "Failed", status
            assert not await world.names("StatefulSet")
    finally:
        await world.cluster.call("DELETE", f"{where}/down-{world.namespace}")
    end = time.monotonic() + 60
    while (status := await _looked(world, key)).get("reason") != "PodsNotReady":
        assert time.monotonic() < end, status


LEAST = {"type": "Container", "min": {"memory": "4Gi"}}
MOST = {"type": "Container", "max": {"memory": "32Mi"}}
CLAIMS = {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}


@pytest.mark.parametrize(
    ("kind", "spec", "reason", "words"),
    [
        ("limitranges", {"limits": [LEAST]}, "LimitRange", "minimum memory usage per Container"),
        ("limitranges", {"limits": [MOST]}, "LimitRange", "memory limit of 32Mi"),
        ("limitranges", {"limits": [CLAIMS]}, "LimitRange", "PersistentVolumeClaim tiny-run: "),
        (
            "resourcequotas",
            {"hard": {"limits.cpu": "9"}},
            "LimitsMissing",
            "must specify limits.cpu for: ",
        ),
        (
            "resourcequotas",
            {"hard": {"requests.storage": "1Gi"}},
            "QuotaExceeded",
            "PersistentVolumeClaim tiny-run: ",
        ),
    ],
    ids=["least", "most", "claims", "unlimited", "storage"],
)
async def test_what_the_namespace_allows_is_told_in_its_words(
    world: World, kind: str, spec: dict[str, Any], reason: str, words: str
) -> None:
    where = f"/api/v1/namespaces/{world.namespace}/{kind}"
    await world.cluster.call("POST", where, body={"metadata": {"name": "few"}, "spec": spec})
    key = await world.submit(job())
    status = await world.until(key, reason)
    assert status["phase"] == "Starting"
    assert words in status["message"]
    pods = next(one for one in status["conditions"] if one["type"] == "PodsReady")
    assert (pods["status"], pods["reason"]) == ("False", reason)


async def test_a_volume_that_is_not_mounted_is_told_in_the_words_of_its_node(world: World) -> None:
    key = await world.submit(job())
    await world.until(key, "PodsNotReady")
    name = await world.pod("trainer")
    at = f"/api/v1/namespaces/{world.namespace}/pods/{name}"
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60)),
    }
    pod = await world.change(f"{at}/status", {"status": {"conditions": [scheduled]}})
    for reason, words in (
        ("FailedAttachVolume", 'Multi-Attach error for volume "pvc-1": it is used by pods'),
        ("FailedMount", "Unable to attach or mount volumes: timed out waiting for the condition"),
    ):
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": reason.lower(), "namespace": world.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                **{key: pod["metadata"][key] for key in ("name", "namespace", "uid")},
            },
            "type": "Warning",
            "reason": reason,
            "message": words,
            "lastTimestamp": scheduled["lastTransitionTime"],
        }
        await world.cluster.create(event)
    status = await world.until(key, "VolumeNotMounted")
    assert status["phase"] == "Starting"
    assert f"{name} has no volume yet: Multi-Attach error" in status["message"]
    assert "accessMode ReadWriteMany" in status["message"]


async def _looked(world: World, key: Key) -> dict[str, Any]:
    """The status after a look, which may end in a refusal."""
    try:
        return await world.look(key)
    except RefusedError:
        found = await world.cluster.call("GET", f"{world.path}/{key.name}")
        status: dict[str, Any] = found.get("status") or {}
        return status


async def _effective(world: World) -> None:
    """Wait until the API server asks the webhook."""
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "main", "image": "registry.invalid/x"}]},
    }
    probe = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "probe", "namespace": world.namespace},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template},
    }
    end = time.monotonic() + 60
    while True:
        try:
            await world.cluster.try_to_make(probe)
        except RefusedError:
            return
        assert time.monotonic() < end
