"""What the chart promises without the controller: its store, and the rights it gives."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from .chart import Release
from .kube import Kubernetes, restricted_pod

ASK = """
import socket, sys, redis, urllib.parse
socket.getaddrinfo(urllib.parse.urlsplit(sys.argv[1]).hostname, None)  # else the pod fails
try:
    print(redis.Redis.from_url(sys.argv[1], socket_connect_timeout=5).ping())
except redis.RedisError as error:
    print(type(error).__name__)
"""


@pytest.fixture
def own(
    cluster: Kubernetes, images: Mapping[str, str], namespace: str
) -> Iterator[tuple[Release, dict[str, Any]]]:
    """A release for one namespace, not yet installed, and the values that keep it in there."""
    release = Release(cluster, images, namespace)
    values = {"watch": {"namespaces": [namespace]}, "crds": {"enabled": False}}
    yield release, {**values, "rbac": {"aggregate": False}}
    release.uninstall()


def store_pod(release: Release) -> str:
    uid: str = release.cluster.get(release.namespace, "pod", "flexmarl-store-0")["metadata"]["uid"]
    return uid


def volume(release: Release) -> dict[str, Any]:
    pod = release.cluster.get(release.namespace, "pod", "flexmarl-store-0")
    [found] = [each for each in pod["spec"]["volumes"] if each["name"] == "data"]
    return dict(found)


def test_an_upgrade_leaves_the_store_and_its_password_alone(own: Any) -> None:
    release, values = own
    release.upgrade(wait=False, **values)
    release.store_ready()
    url, pod = release.store_url(), store_pod(release)
    release.upgrade(wait=False, **values, controller={"logLevel": "DEBUG"})
    release.store_ready()
    assert (release.store_url(), store_pod(release)) == (url, pod)


def test_without_its_storage_class_the_store_runs_and_the_notes_warn(own: Any) -> None:
    release, values = own
    said = release.upgrade(
        wait=False, **values, store={"persistence": {"storageClass": "no-such-class"}}
    )
    assert "WARNING: the store keeps its data in an emptyDir" in said
    assert "no-such-class" in said
    release.store_ready()
    assert "emptyDir" in volume(release)


def test_the_store_keeps_its_log_on_a_claim_where_there_is_a_class(
    cluster: Kubernetes, own: Any
) -> None:
    classes = cluster.kubectl("get", "storageclass", "-o", "yaml")
    if 'is-default-class: "true"' not in classes:
        pytest.skip("the cluster has no default StorageClass")
    release, values = own
    said = release.upgrade(wait=False, **values)
    assert "WARNING" not in said
    release.store_ready()
    assert volume(release)["persistentVolumeClaim"] == {"claimName": "flexmarl-store"}


def test_the_store_answers_only_who_knows_a_password_and_comes_from_where_it_should(
    cluster: Kubernetes, images: Mapping[str, str], own: Any
) -> None:
    release, values = own
    release.upgrade(wait=False, **values)
    release.store_ready()
    url = release.store_url()
    anonymous = url.replace(url.partition("//")[2].partition("@")[0] + "@", "")
    service = {"flexmarl.io/role": "experience"}

    def asks(name: str, address: str, labels: Mapping[str, str]) -> str:
        pod = restricted_pod(
            name, images["slim"], command=["python", "-c", ASK], args=[address], labels=labels
        )
        cluster.apply(release.namespace, pod)
        return cluster.complete(release.namespace, name).strip()

    assert asks("knows", url, service) == "True"
    assert asks("guesses", anonymous, service) == "AuthenticationError"
    if os.environ["FLEXMARL_E2E"] == "node":  # which enforces NetworkPolicies
        assert asks("foreign", url, {}) in {"ConnectionError", "TimeoutError"}


def test_the_controller_has_rights_only_where_it_serves(cluster: Kubernetes, own: Any) -> None:
    release, values = own
    release.upgrade(wait=False, **values)

    def may(verb: str, resource: str, namespace: str) -> bool:
        as_whom = f"--as={release.account()}"
        said = cluster.kubectl(
            "auth", "can-i", verb, resource, "-n", namespace, as_whom, check=False
        )
        return said.strip().startswith("yes")

    for verb, resource in (("patch", "statefulsets.apps"), ("create", "secrets"), ("list", "pods")):
        assert may(verb, resource, release.namespace)
        assert not may(verb, resource, "kube-system")
    assert not may("create", "rolebindings.rbac.authorization.k8s.io", release.namespace)
    assert not may("create", "pods/exec", release.namespace)
