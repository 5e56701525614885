"""Pod templates, and the workloads that make pods of them."""

from __future__ import annotations

import copy

from flexmarl.controller.former import digest
from flexmarl.controller.names import (
    MADE_AS,
    ORCHESTRATOR,
    ROLE_LABEL,
    TRAINER,
    UID_LABEL,
    Manifest,
    labels,
)
from flexmarl.controller.render import gang
from flexmarl.controller.render.merge import laid_over
from flexmarl.controller.render.parts import (
    FILES_DIR,
    GRACE_SECONDS,
    JOB_DIR,
    METRICS_PORT,
    PORT,
    RUN_DIR,
    Installation,
    Pods,
    Subject,
    environment,
    locked_down,
    probes,
    unprivileged,
)
from flexmarl.controller.render.preflight import laid_out, preflight


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
    whole = {**spec, "template": pod_template(subject, installation, pods)}
    metadata["annotations"] = {MADE_AS: digest({**whole, "replicas": None})}
    group = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": whole}


def pod_template(subject: Subject, installation: Installation, pods: Pods) -> Manifest:
    volumes, mounts = _volumes(subject, pods)
    first = preflight(subject, installation, pods, [*mounts, *pods.mounts])
    own = {"base_dir": FILES_DIR} if laid_out(subject, pods) else {}
    main: Manifest = {
        "name": "main",
        "image": pods.image,
        "imagePullPolicy": installation.pull_policy,
        "args": ["serve", pods.role],
        "env": environment(subject, {**own, **pods.env}),
        "ports": [
            {"name": "grpc", "containerPort": PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
        ],
        **probes(PORT, pods.startup_seconds),
        "resources": pods.resources or {"requests": {"cpu": "50m", "memory": "192Mi"}},
        "securityContext": locked_down(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*mounts, *first.mounts, *pods.mounts],
    }
    spec: Manifest = {
        "serviceAccountName": subject.child("job"),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # The sandbox is process 1: it reaps what user code leaves behind, and no process of ours is
        # one that no signal ends before it has set up its handlers.
        "shareProcessNamespace": True,
        "restartPolicy": pods.restart,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": unprivileged(),
        "initContainers": [
            first.container,
            *(
                {
                    "imagePullPolicy": installation.pull_policy,
                    "securityContext": locked_down(),
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    **sidecar,
                }
                for sidecar in pods.sidecars
            ),
        ],
        "containers": [main],
        "volumes": [*volumes, *first.volumes, *pods.volumes],
        **copy.deepcopy(pods.placement),
    }
    if pods.run_claim and _on_one_node(subject):
        spec["affinity"] = _near(subject)
    if installation.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in installation.pull_secrets]
    marks = labels(subject.name, pods.role, uid=subject.uid, policy=pods.policy, pool=pods.pool)
    template = gang.joined(
        subject.job.spec.gang.kind,
        subject.child("job"),
        {"metadata": {"labels": dict(marks)}, "spec": spec},
    )
    if pods.template:
        template = laid_over(template, pods.template)
        template["metadata"]["labels"] |= marks  # they are how pods are found
    return template


def _on_one_node(subject: Subject) -> bool:
    """Whether the claim of the run is one that is made here and serves one node only."""
    claim = subject.job.spec.checkpoint.claim
    return claim.name is None and claim.access_mode != "ReadWriteMany"


def _near(subject: Subject) -> Manifest:
    """Who mounts the run's claim goes where the others are, if there is room: no scheduler knows
    that a network disk is attached to one node."""
    others = {
        "matchLabels": {UID_LABEL: subject.uid},
        "matchExpressions": [
            {"key": ROLE_LABEL, "operator": "In", "values": [ORCHESTRATOR, TRAINER]}
        ],
    }
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": others}
    wish = {"weight": 100, "podAffinityTerm": term}
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}


def _volumes(subject: Subject, pods: Pods) -> tuple[list[Manifest], list[Manifest]]:
    volumes: list[Manifest] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "cache", **_cache(subject)},
        {"name": "job", "configMap": {"name": subject.child("job")}},
    ]
    mounts: list[Manifest] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "cache", "mountPath": "/cache"},
        {"name": "job", "mountPath": JOB_DIR, "readOnly": True},
    ]
    if pods.run_claim:
        named = subject.job.spec.checkpoint.claim.name or subject.child("run")
        volumes.append({"name": "run", "persistentVolumeClaim": {"claimName": named}})
    else:
        volumes.append({"name": "run", "emptyDir": {}})
    mounts.append({"name": "run", "mountPath": RUN_DIR})
    return volumes, mounts


def _cache(subject: Subject) -> Manifest:
    claim = subject.job.spec.cache.claim
    return {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
