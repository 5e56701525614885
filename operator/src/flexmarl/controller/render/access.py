"""What a job's pods share: identity, job file, credentials, volume, and who may call them."""

import base64
import json
from urllib.parse import urlsplit

from flexmarl.controller.names import (
    EXPERIENCE,
    JOB_LABEL,
    ORCHESTRATOR,
    READER,
    ROLE_LABEL,
    Manifest,
)
from flexmarl.controller.render.parts import METRICS_PORT, PORT, Installation, Subject

SIZE = "10Gi"
ACCESS = "ReadWriteOnce"


def account(subject: Subject) -> Manifest:
    """One without a token: pods do not talk to the API server."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": subject.metadata(subject.child("job"), "job"),
        "automountServiceAccountToken": False,
    }


def credentials(subject: Subject) -> Manifest:
    password = urlsplit(subject.store_url).password or ""
    values = {
        "token": subject.token,
        "store-url": subject.store_url,
        "store-password": password,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": subject.metadata(subject.child("job"), "job"),
        "type": "Opaque",
        "data": {
            key: base64.b64encode(value.encode()).decode() for key, value in values.items() if value
        },
    }


def job_file(subject: Subject) -> Manifest:
    """JSON is YAML; the name is the one that processes know."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": subject.metadata(subject.child("job"), "job"),
        "data": {"job.yaml": json.dumps(subject.document, indent=2) + "\n"},
    }


def claim(subject: Subject, installation: Installation) -> list[Manifest]:
    """The volume of the run, unless the job names one that exists. Kept, it has no owner.

    It says how a pod is made that reads it, for who has nothing but the claim any more.
    """
    wanted = subject.job.spec.checkpoint.claim
    if wanted.name is not None:
        return []
    spec: Manifest = {
        "accessModes": [wanted.access_mode or ACCESS],
        "resources": {"requests": {"storage": wanted.size or SIZE}},
    }
    if wanted.storage_class is not None:
        spec["storageClassName"] = wanted.storage_class
    metadata = subject.metadata(subject.child("run"), "job", owned=not wanted.retain)
    reader: Manifest = {"image": installation.images["slim"]}
    if installation.pull_secrets:
        reader["imagePullSecrets"] = [{"name": name} for name in installation.pull_secrets]
    metadata["annotations"] = {READER: json.dumps(reader)}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": metadata,
            "spec": spec,
        }
    ]


def network_policy(subject: Subject, installation: Installation) -> list[Manifest]:
    """Into the job's pods: the job's pods, the controller to ask the orchestrator, and metrics."""
    if not installation.network_policies:
        return []
    mine = {"matchLabels": {JOB_LABEL: subject.name}}
    ingress: list[Manifest] = [{"from": [{"podSelector": mine}]}]
    if installation.metrics_from:
        peers = list(installation.metrics_from)
        ingress.append({"from": peers, "ports": [{"protocol": "TCP", "port": METRICS_PORT}]})
    found = [_policy(subject, "", mine, ingress)]
    if subject.job.spec.network.host_network:  # to a policy, trainers there are nobody's pods
        store = {"matchLabels": {JOB_LABEL: subject.name, ROLE_LABEL: EXPERIENCE}}
        anyone: Manifest = {"ports": [{"protocol": "TCP", "port": PORT}]}
        found.append(_policy(subject, EXPERIENCE, store, [anyone]))
    if installation.namespace:
        leader = {"matchLabels": {JOB_LABEL: subject.name, ROLE_LABEL: ORCHESTRATOR}}
        controller = {
            "namespaceSelector": {
                "matchLabels": {"kubernetes.io/metadata.name": installation.namespace}
            },
            "podSelector": {
                "matchLabels": {
                    "app.kubernetes.io/name": "flexmarl",
                    "app.kubernetes.io/component": "controller",
                }
            },
        }
        asks: Manifest = {"from": [controller], "ports": [{"protocol": "TCP", "port": PORT}]}
        found.append(_policy(subject, ORCHESTRATOR, leader, [asks]))
    return found


def _policy(subject: Subject, part: str, pods: Manifest, ingress: list[Manifest]) -> Manifest:
    name = subject.child(part) if part else subject.child("job")
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": subject.metadata(name, "job"),
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress},
    }
