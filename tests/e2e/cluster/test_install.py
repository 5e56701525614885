"""What the chart promises without a job of a user: its store, the rights it gives, its own test."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from .chart import Release
from .kube import restricted_pod
from .stage import Stage

ASK = """
import socket, sys, time, redis, urllib.parse
url, *command = sys.argv[1:]
socket.getaddrinfo(urllib.parse.urlsplit(url).hostname, None)  # else the pod fails
end = time.monotonic() + 15  # until then a network may not yet know that this pod is admitted
while True:
    try:
        said = redis.Redis.from_url(url, socket_connect_timeout=5).execute_command(*command)
    except redis.RedisError as error:
        said = type(error).__name__
    if said not in ("ConnectionError", "TimeoutError") or time.monotonic() > end:
        break
    time.sleep(0.5)
print(said)
"""
INSIDE = {"flexmarl.io/role": "experience"}
"""Labels of a pod that the store's policy admits."""


@contextmanager
def own(stage: Stage) -> Iterator[tuple[Release, dict[str, Any]]]:
    """A release for one namespace, not yet installed, and the values that keep it in there."""
    release = Release(stage.cluster, stage.images, stage.namespace())
    values = {"watch": {"namespaces": [release.namespace]}, "crds": {"enabled": False}}
    yield release, {**values, "rbac": {"aggregate": False}}
    release.uninstall()


def store_pod(release: Release) -> dict[str, Any]:
    return release.cluster.get(release.namespace, "pod", "flexmarl-store-0")


def volume(release: Release) -> dict[str, Any]:
    [found] = [each for each in store_pod(release)["spec"]["volumes"] if each["name"] == "data"]
    return dict(found)


def asks(
    release: Release, name: str, url: str, *command: str, labels: Mapping[str, str] = INSIDE
) -> str:
    """What the store there answers a pod of the release's namespace."""
    python = ["python", "-c", ASK]
    pod = restricted_pod(
        name, release.images["slim"], command=python, args=[url, *command], labels=labels
    )
    release.cluster.apply(release.namespace, pod)
    return release.cluster.complete(release.namespace, name).strip()


@pytest.mark.light
def test_the_store_outlives_its_pod_on_a_claim_and_an_upgrade_leaves_it_alone(
    stage: Stage,
) -> None:
    classes = stage.cluster.kubectl("get", "storageclass", "-o", "yaml")
    if 'is-default-class: "true"' not in classes:
        pytest.skip("the cluster has no default StorageClass")
    with own(stage) as (release, values):
        assert "WARNING" not in release.upgrade(wait=False, **values)
        release.store_ready()
        assert volume(release)["persistentVolumeClaim"] == {"claimName": "flexmarl-store"}
        url = release.store_url()
        assert asks(release, "writes", url, "SET", "kept", "1") == "True"
        release.lose_store()
        release.store_ready()
        assert asks(release, "reads", url, "GET", "kept") == "b'1'"
        pod = store_pod(release)["metadata"]["uid"]
        release.upgrade(wait=False, **values, controller={"logLevel": "DEBUG"})
        release.store_ready()
        assert (release.store_url(), store_pod(release)["metadata"]["uid"]) == (url, pod)


@pytest.mark.light
def test_without_its_storage_class_the_store_runs_and_the_notes_warn(stage: Stage) -> None:
    with own(stage) as (release, values):
        said = release.upgrade(
            wait=False, **values, store={"persistence": {"storageClass": "no-such-class"}}
        )
        assert "WARNING: the store keeps its data in an emptyDir" in said
        assert "no-such-class" in said
        release.store_ready()
        assert "emptyDir" in volume(release)


@pytest.mark.light
def test_a_store_and_a_controllers_rights_are_open_only_to_whom_and_where_they_should(
    stage: Stage,
) -> None:
    with own(stage) as (release, values):
        release.upgrade(wait=False, **values)
        rights_end_where_it_serves(release)
        release.store_ready()
        url = release.store_url()
        anonymous = url.replace(url.partition("//")[2].partition("@")[0] + "@", "")
        assert asks(release, "knows", url, "PING") == "True"
        assert asks(release, "guesses", anonymous, "PING") == "AuthenticationError"
        if os.environ["FLEXMARL_E2E"] == "node":  # which enforces NetworkPolicies
            said = asks(release, "foreign", url, "PING", labels={})
            assert said in {"ConnectionError", "TimeoutError"}


def rights_end_where_it_serves(release: Release) -> None:
    def may(verb: str, resource: str, namespace: str) -> bool:
        whom = f"--as={release.account()}"
        asked = ("auth", "can-i", verb, resource, "-n", namespace, whom)
        return release.cluster.kubectl(*asked, check=False).strip().startswith("yes")

    for verb, resource in (("patch", "statefulsets.apps"), ("create", "secrets"), ("list", "pods")):
        assert may(verb, resource, release.namespace)
        assert not may(verb, resource, "kube-system")
    assert not may("create", "rolebindings.rbac.authorization.k8s.io", release.namespace)
    assert not may("create", "pods/exec", release.namespace)


@pytest.mark.long
def test_the_job_of_helm_test_is_complete(stage: Stage) -> None:
    assert "Complete" in stage.release.test()
