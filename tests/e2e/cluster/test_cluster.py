"""The cluster enforces what the tests of access rely on: else those would prove nothing."""

from __future__ import annotations

import pytest

from .kube import restricted_pod, until
from .reading import Manifest
from .stage import Stage

pytestmark = pytest.mark.light

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 8000), timeout=2).close()
    print("open")
except (TimeoutError, ConnectionRefusedError):
    print("blocked")  # a firewall drops or rejects: both are usual
except OSError as error:
    print(error)
"""


def test_a_pod_that_may_become_root_is_refused(stage: Stage) -> None:
    cluster, images, namespace = stage.cluster, stage.images, stage.namespace()
    said = cluster.kubectl(
        *("-n", namespace, "run", "root", f"--image={images['slim']}"), check=False
    )
    assert 'violates PodSecurity "restricted' in said


def test_a_network_policy_blocks_connections_and_another_admits_them(stage: Stage) -> None:
    cluster, images, namespace = stage.cluster, stage.images, stage.namespace()
    serve = ["python", "-m", "http.server", "--directory", "/tmp", "8000"]
    sleep = ["python", "-c", "import time; time.sleep(600)"]
    cluster.apply(
        namespace,
        restricted_pod("server", images["slim"], command=serve, labels={"app": "server"}),
        restricted_pod("client", images["slim"], command=sleep, labels={"app": "client"}),
        _service("server"),
    )
    cluster.ready(namespace, "server")
    cluster.ready(namespace, "client")

    def connecting() -> str:
        where = f"server.{namespace}.svc.cluster.local"
        python = ("python", "-c", CONNECT, where)
        return cluster.kubectl("-n", namespace, "exec", "client", "--", *python).strip()

    until(lambda: connecting() == "open", "the service answers before any policy", 30)
    cluster.apply(namespace, _policy("deny", []))
    until(lambda: connecting() == "blocked", "the denied connection is blocked", 30)
    peers = [{"podSelector": {"matchLabels": {"app": "client"}}}]
    cluster.apply(namespace, _policy("admit", [{"from": peers}]))
    until(lambda: connecting() == "open", "the admitted connection is made", 30)


def _service(app: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": app},
        "spec": {"selector": {"app": app}, "ports": [{"port": 8000}]},
    }


def _policy(name: str, ingress: list[Manifest]) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": ingress},
    }
