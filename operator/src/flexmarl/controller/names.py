"""What the parts of a job are called on a cluster; pure."""

import hashlib
from collections.abc import Mapping
from typing import Any, TypeAlias

from flexmarl.contracts.api import API_VERSION

Manifest: TypeAlias = dict[str, Any]

JOB_LABEL = "flexmarl.io/job"
ROLE_LABEL = "flexmarl.io/role"
UID_LABEL = "flexmarl.io/uid"
"""Of a pod: the very job that it is of."""
POLICY_LABEL = "flexmarl.io/policy"
POOL_LABEL = "flexmarl.io/pool"
MADE_AS = "flexmarl.io/made-as"
"""Annotation of workloads and of the job's file: a digest of what stays of them while they live."""
STEPS = "flexmarl.io/steps"
"""Annotation of the orchestrator's Job: the steps it was started for."""
READER = "flexmarl.io/reader"
"""Annotation of a claim: the image of a pod that is to read it, and PLACED of its spec."""
PLACED = ("imagePullSecrets", "nodeSelector", "affinity", "tolerations", "securityContext")
"""What decides in a pod's spec where it may run, and as whom."""
EVIDENCE = "evidence"
"""Role of what stays of a job's pods when they are gone."""
ROLES = "flexmarl.io/roles"
"""Annotation of evidence: entry -> role, as JSON."""
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "flexmarl"
"""Its value, and the field manager, of everything that the controller applies."""

ORCHESTRATOR, WORKER, ENGINE = "orchestrator", "rollout-worker", "engine"
TRAINER, EXPERIENCE, WEIGHTS = "trainer", "experience", "weights"
MAIN = "main"
"""The container of a pod's process."""
LONGEST = 52
"""Of a StatefulSet's name: its pods carry it, eleven letters longer, in a label."""


def child(job: str, *parts: str) -> str:
    """`job-part-part`, shortened with a hash where it would be too long for every kind."""
    name = "-".join((job, *parts))
    if name[0].isdigit():  # Services begin with a letter
        name = f"j-{name}"
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - 9].rstrip('-')}-{digest}"


def labels(job: str, role: str, **more: str) -> dict[str, str]:
    """Of a child: `policy` and `pool` too where it has them."""
    found = {
        "app.kubernetes.io/name": "flexmarl",
        MANAGED_BY: MANAGER,
        "app.kubernetes.io/component": role,
        JOB_LABEL: job,
        ROLE_LABEL: role,
    }
    return found | {f"flexmarl.io/{key}": value for key, value in more.items() if value}


def selector(job: str, role: str, **more: str) -> dict[str, str]:
    """What finds the pods that `labels` made."""
    found = {JOB_LABEL: job, ROLE_LABEL: role}
    return found | {f"flexmarl.io/{key}": value for key, value in more.items() if value}


def owner(name: str, uid: str) -> Manifest:
    """Makes the garbage collector delete a child with its job."""
    return {
        "apiVersion": API_VERSION,
        "kind": "MARLJob",
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def reference(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """Kind and name."""
    return manifest["kind"], manifest["metadata"]["name"]
