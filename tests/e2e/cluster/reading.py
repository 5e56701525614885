"""What the API server has, read in this process.

Tests wait by looking again and again: with a kubectl for each look, those would be most of what two
cores do.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias
from urllib.parse import urlencode

from kubernetes import config

from flexmarl.contracts.api import GROUP, VERSION

Manifest: TypeAlias = dict[str, Any]

CORE, APPS = "/api/v1", "/apis/apps/v1"
RESOURCES = {
    "configmap": (CORE, "configmaps"),
    "crd": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "deployment": (APPS, "deployments"),
    "job": ("/apis/batch/v1", "jobs"),
    "marljob": (f"/apis/{GROUP}/{VERSION}", "marljobs"),
    "networkpolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "node": (CORE, "nodes"),
    "pod": (CORE, "pods"),
    "pvc": (CORE, "persistentvolumeclaims"),
    "replicaset": (APPS, "replicasets"),
    "secret": (CORE, "secrets"),
    "service": (CORE, "services"),
    "serviceaccount": (CORE, "serviceaccounts"),
    "statefulset": (APPS, "statefulsets"),
}
"""Kind -> path of its API, name there."""
SECONDS = 60.0


class Reader:
    """Of the cluster of the environment's kubeconfig, by any thread."""

    def __init__(self) -> None:
        self._api = config.new_client_from_config()

    def one(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """`namespace`: empty for what is of none."""
        return self._read(f"{_path(kind, namespace)}/{name}")

    def all(self, kind: str, namespace: str, labels: str = "") -> list[Manifest]:
        found = self._read(f"{_path(kind, namespace)}?{urlencode({'labelSelector': labels})}")
        assert found is not None, f"the cluster has no {kind}"
        return list(found["items"])

    def _read(self, path: str) -> Manifest | None:
        asked = self._api.param_serialize(
            "GET",
            path,
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        answer = self._api.call_api(*asked, _request_timeout=SECONDS)
        said = answer.read()
        if answer.status == 404:
            return None
        assert answer.status == 200, f"{path}: {answer.status} {said!r:.1000}"
        found: Manifest = json.loads(said)
        return found


def _path(kind: str, namespace: str) -> str:
    api, plural = RESOURCES[kind]
    return f"{api}/namespaces/{namespace}/{plural}" if namespace else f"{api}/{plural}"
