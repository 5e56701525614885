"""What all workloads of a job have in common: who they are, pods, mounts, environment."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flexmarl.contracts.job import MARLJob
from flexmarl.controller.names import MADE_BY, Manifest, child, labels, owner
from flexmarl.controller.render import gang
from flexmarl.controller.render.merge import laid_over

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
    made_by: str = ""
    """Of what decides a pod's template besides the job; workloads of another are left as they are
    while their job runs."""


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
    run_claim: bool = False


def workload(
    subject: Subject,
    installation: Installation,
    pods: Pods,
    *,
    kind: str,
    name: str,
    spec: Manifest,
) -> Manifest:
    """A Deployment, StatefulSet or Job of these pods."""
    metadata = subject.metadata(name, pods.role, policy=pods.policy, pool=pods.pool)
    metadata["annotations"] = {MADE_BY: installation.made_by}
    group = "batch/v1" if kind == "Job" else "apps/v1"
    return {
        "apiVersion": group,
        "kind": kind,
        "metadata": metadata,
        "spec": {**spec, "template": pod_template(subject, installation, pods)},
    }


def pod_template(subject: Subject, installation: Installation, pods: Pods) -> Manifest:
    volumes, mounts = _volumes(subject, pods)
    main: Manifest = {
        "name": "main",
        "image": pods.image,
        "imagePullPolicy": installation.pull_policy,
        "args": ["serve", pods.role],
        "env": environment(subject, pods.env),
        "ports": [
            {"name": "grpc", "containerPort": PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
        ],
        **probes(PORT),
        "resources": pods.resources or {"requests": {"cpu": "50m", "memory": "192Mi"}},
        "securityContext": locked_down(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*mounts, *pods.mounts],
    }
    spec: Manifest = {
        "serviceAccountName": subject.child("job"),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": pods.restart,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [main],
        "volumes": [*volumes, *pods.volumes],
        **copy.deepcopy(pods.placement),
    }
    if pods.sidecars:
        spec["initContainers"] = [
            {
                "imagePullPolicy": installation.pull_policy,
                "securityContext": locked_down(),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                **sidecar,
            }
            for sidecar in pods.sidecars
        ]
    if installation.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in installation.pull_secrets]
    own = labels(subject.name, pods.role, policy=pods.policy, pool=pods.pool)
    template = gang.joined(
        subject.job.spec.gang.kind,
        subject.child("job"),
        {"metadata": {"labels": dict(own)}, "spec": spec},
    )
    if pods.template:
        template = laid_over(template, pods.template)
        template["metadata"]["labels"] |= own  # they are how pods are found
    return template


def environment(subject: Subject, own: Mapping[str, Any]) -> list[Manifest]:
    """`env` of a container: what every process needs, and `own`."""
    values: dict[str, Any] = {
        "job_file": JOB_FILE,
        "base_dir": FILES_DIR if _files(subject) else JOB_DIR,
        "run_dir": subject.run_dir,
        "shm_dir": "/dev/shm",
        "job_uid": subject.uid,
        "token": from_secret(subject.child("job"), "token"),
        "listen": f"0.0.0.0:{PORT}",
        "log_format": "json",
        "metrics_port": METRICS_PORT,
        "drain_seconds": DRAIN_SECONDS,
        **own,
    }
    pod_ip = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return [pod_ip, *(_variable(key, value) for key, value in values.items())]


def from_secret(name: str, key: str) -> Manifest:
    return {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


def probes(port: int) -> Manifest:
    check = {"grpc": {"port": port}}
    return {
        "startupProbe": {
            **check,
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 1800,
        },
        "readinessProbe": {**check, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {
            **check,
            "periodSeconds": 30,
            "timeoutSeconds": 20,
            "failureThreshold": 10,
        },
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


def _files(subject: Subject) -> str | None:
    return subject.job.spec.code.config_map if subject.job.spec.code else None


def _volumes(subject: Subject, pods: Pods) -> tuple[list[Manifest], list[Manifest]]:
    volumes: list[Manifest] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "cache", "emptyDir": {}},
        {"name": "job", "configMap": {"name": subject.child("job")}},
    ]
    mounts: list[Manifest] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "cache", "mountPath": "/cache"},
        {"name": "job", "mountPath": JOB_DIR, "readOnly": True},
    ]
    if files := _files(subject):
        volumes.append({"name": "files", "configMap": {"name": files}})
        mounts.append({"name": "files", "mountPath": FILES_DIR, "readOnly": True})
    if pods.run_claim:
        named = subject.job.spec.checkpoint.claim.name or subject.child("run")
        volumes.append({"name": "run", "persistentVolumeClaim": {"claimName": named}})
    else:
        volumes.append({"name": "run", "emptyDir": {}})
    mounts.append({"name": "run", "mountPath": RUN_DIR})
    return volumes, mounts
