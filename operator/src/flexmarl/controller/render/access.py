"""What a job's pods share: identity, job file, credentials, volume, and who may call them."""

import base64
import json
from urllib.parse import urlsplit

from flexmarl.contracts.problems import show
from flexmarl.contracts.quantities import quantity
from flexmarl.controller.former import digest, lasting
from flexmarl.controller.names import (
    EXPERIENCE,
    JOB_LABEL,
    MADE_AS,
    ORCHESTRATOR,
    PLACED,
    READER,
    ROLE_LABEL,
    Manifest,
)
from flexmarl.controller.render.merge import laid_over
from flexmarl.controller.render.parts import (
    METRICS_PORT,
    PORT,
    Installation,
    Subject,
    unprivileged,
)

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
    metadata = subject.metadata(subject.child("job"), "job")
    metadata["annotations"] = {MADE_AS: digest(lasting(subject.document["spec"]))}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"job.yaml": json.dumps(subject.document, indent=2) + "\n"},
    }


def claim(subject: Subject, installation: Installation) -> list[Manifest]:
    """The volume of the run; kept, it has no owner. Of one that the job names, no more than a note:
    how a pod is made that reads it, for who has nothing but the claim any more."""
    wanted = subject.job.spec.checkpoint.claim
    note = {READER: json.dumps(_reader(subject, installation))}
    if wanted.name is not None:
        where = {"name": wanted.name, "namespace": subject.namespace}
        metadata: Manifest = {**where, "annotations": note}
        return [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}]
    spec: Manifest = {
        "accessModes": [wanted.access_mode or ACCESS],
        "resources": {"requests": {"storage": wanted.size or SIZE}},
    }
    if wanted.storage_class is not None:
        spec["storageClassName"] = wanted.storage_class
    metadata = subject.metadata(subject.child("run"), "job", owned=not wanted.retain)
    metadata["annotations"] = note
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": metadata,
            "spec": spec,
        }
    ]


def _reader(subject: Subject, installation: Installation) -> Manifest:
    """Where the orchestrator may run, its volume can be read."""
    image = installation.images["slim"]
    ours: Manifest = {
        "imagePullSecrets": [{"name": name} for name in installation.pull_secrets],
        "securityContext": unprivileged(),
        "containers": [{"name": "main", "image": image}],
    }
    spec = laid_over({"spec": ours}, subject.job.spec.roles.orchestrator.template or {})["spec"]
    images = [one.get("image") for one in spec["containers"] if one.get("name") == "main"]
    placed = {key: spec[key] for key in PLACED if spec.get(key)}
    return {"image": next(filter(None, images), image), **placed}


def claim_lacks(wanted: Manifest, there: Manifest) -> str:
    """Why the claim that is there cannot stand for the one that is wanted; empty: it can. A size
    that nobody asked for is not insisted on."""
    asked, has = wanted["spec"], there["spec"]
    (mode,), modes = asked["accessModes"], has.get("accessModes", [])
    if mode not in modes and not (mode == ACCESS and "ReadWriteMany" in modes):
        return f"is {' and '.join(modes)}, not {mode}"
    storage, other = (one.get("storageClassName") for one in (asked, has))
    if storage is not None and storage != other:
        return f"is of the StorageClass {show(other)}, not of {show(storage)}"
    least, size = (one["resources"]["requests"]["storage"] for one in (asked, has))
    if least != SIZE and quantity(size) < quantity(least):
        return f"asks for {size}, not for {least}"
    return ""


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
