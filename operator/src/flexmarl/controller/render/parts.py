"""What all workloads of a job have in common: who they are, where things lie, environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flexmarl.contracts.job import STARTUP_SECONDS, MARLJob
from flexmarl.contracts.preparation import State
from flexmarl.controller.names import Manifest, child, labels, owner

PORT, WEIGHTS_PORT, METRICS_PORT = 7070, 7071, 9090
DRAIN_SECONDS = 15
GRACE_SECONDS = 40
"""Longer than a drain, and than what a checkpoint in progress needs to be given up."""
USER = 10001
JOB_DIR, FILES_DIR, RUN_DIR = "/flexmarl/job", "/flexmarl/files", "/flexmarl/run"
JOB_FILE = f"{JOB_DIR}/job.yaml"


@dataclass(frozen=True, slots=True)
class Installation:
    """What the chart has set for all jobs."""

    images: Mapping[str, str]
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    network_policies: bool = True
    metrics_from: tuple[Manifest, ...] = ()
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """A job with what only the cluster knows of it."""

    job: MARLJob
    uid: str
    document: Manifest
    """As pods read it."""
    token: str
    store_url: str
    """For the experience service; empty: the job names a store of its own."""

    @property
    def name(self) -> str:
        return self.job.metadata.name

    @property
    def namespace(self) -> str:
        return self.job.metadata.namespace

    @property
    def run_dir(self) -> str:
        """Unlike that of an earlier job of this name, whose claim was kept."""
        return f"{RUN_DIR}/{self.name}-{self.uid[:8]}"

    def child(self, *parts: str) -> str:
        return child(self.name, *parts)

    def host(self, service: str) -> str:
        return f"{service}.{self.namespace}.svc"

    def metadata(self, name: str, role: str, *, owned: bool = True, **more: str) -> Manifest:
        found: Manifest = {
            "name": name,
            "namespace": self.namespace,
            "labels": labels(self.name, role, **more),
        }
        if owned:
            found["ownerReferences"] = [owner(self.name, self.uid)]
        return found


@dataclass(frozen=True, slots=True)
class Pods:
    """One kind of pod of a job."""

    role: str
    image: str
    env: Mapping[str, Any] = field(default_factory=dict)
    """FLEXMARL_ variables without the prefix, or `{"valueFrom": ...}`."""
    policy: str = ""
    pool: str = ""
    template: Mapping[str, Any] | None = None
    sidecars: Sequence[Manifest] = ()
    volumes: Sequence[Manifest] = ()
    mounts: Sequence[Manifest] = ()
    resources: Manifest = field(default_factory=dict)
    placement: Manifest = field(default_factory=dict)
    restart: str = "Always"
    startup_seconds: int = STARTUP_SECONDS
    run_claim: bool = False
    policies: tuple[str, ...] = ()
    """Whose models or tokenizers they read."""
    states: tuple[State, ...] = ()
    """What may be trained here."""
    together: bool = False
    """All of it in shared memory at once."""


def environment(subject: Subject, own: Mapping[str, Any]) -> list[Manifest]:
    """`env` of a container: what every process needs, and `own`."""
    values: dict[str, Any] = {
        "job_file": JOB_FILE,
        "base_dir": FILES_DIR if config_map(subject) else JOB_DIR,
        "run_dir": subject.run_dir,
        "shm_dir": "/dev/shm",
        "job_uid": subject.uid,
        "token": from_secret(subject.child("job"), "token"),
        "listen": f"0.0.0.0:{PORT}",  # to gRPC every address, IPv6 as well
        "log_format": "json",
        "metrics_port": METRICS_PORT,
        "drain_seconds": DRAIN_SECONDS,
        **own,
    }
    pod_ip = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return [pod_ip, *(_variable(key, value) for key, value in values.items())]


def from_secret(name: str, key: str) -> Manifest:
    return {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


def probes(port: int, startup_seconds: int) -> Manifest:
    check = {"grpc": {"port": port}}
    return {
        "startupProbe": {
            **check,
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": startup_seconds,
        },
        "readinessProbe": {**check, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": liveness(port),
    }


def liveness(port: int) -> Manifest:
    return {
        "grpc": {"port": port},
        "periodSeconds": 30,
        "timeoutSeconds": 20,
        "failureThreshold": 10,
    }


def unprivileged() -> Manifest:
    """As whom a pod runs."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def locked_down() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _variable(key: str, value: Any) -> Manifest:
    name = f"FLEXMARL_{key.upper()}"
    if isinstance(value, dict) and "valueFrom" in value:
        return {"name": name, **value}
    return {"name": name, "value": value if isinstance(value, str) else json.dumps(value)}


def config_map(subject: Subject) -> str | None:
    """Of the files beside the job."""
    return subject.job.spec.code.config_map if subject.job.spec.code else None
