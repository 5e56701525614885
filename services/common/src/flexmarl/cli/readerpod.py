"""A pod that mounts a run's claim read-only, for as long as its files are read."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from flexmarl.cli.cluster import Cluster
from flexmarl.cli.console import CommandError, warn
from flexmarl.cli.refusals import Object
from flexmarl.controller.names import PLACED, child

MOUNT, MAIN = "/flexmarl/run", "main"
START_SECONDS = 180.0
"""For the pod, with pulling its image and with a node that is yet to come."""
AGAIN_SECONDS = 0.5
LIFE_SECONDS = 3600
"""After which the pod ends by itself, should nobody delete it."""


@asynccontextmanager
async def running(cluster: Cluster, job: str, claim: str, told: Object) -> AsyncIterator[str]:
    """The name of one that has the claim, running; gone afterwards. CommandError."""
    name = f"{child(job, 'reader')}-{secrets.token_hex(3)}"
    try:
        await cluster.create_pod(manifest(name, claim, told))
    except asyncio.CancelledError:  # it may be there already
        await cluster.delete_pod(name)
        raise
    try:
        await _started(cluster, name, claim)
        yield name
    finally:
        await cluster.delete_pod(name)


def ready(pod: Object) -> bool:
    status = pod.get("status") or {}
    ready = any(one.get("ready") for one in status.get("containerStatuses") or ())
    return status.get("phase") == "Running" and ready and "deletionTimestamp" not in pod["metadata"]


async def _started(cluster: Cluster, name: str, claim: str) -> None:
    """Wait for it. What stands in its way may pass: nodes come, registries come back."""
    loop = asyncio.get_running_loop()
    end = loop.time() + START_SECONDS
    said = ""
    while True:
        pod = await cluster.pod(name)
        if pod is None or pod["status"].get("phase") in ("Failed", "Succeeded"):
            why = ": ".join(text for _, text in troubles(pod or {})) or "somebody deleted it"
            raise CommandError(f"The pod {name}, which is to read the claim {claim}, ended: {why}")
        if ready(pod):
            return
        reason, why = next(troubles(pod), ("", ""))
        if loop.time() > end:
            raise CommandError(
                f"The pod {name}, which is to read the claim {claim}, did not start within "
                f"{START_SECONDS:.0f} s{': ' + why if why else ''}. See: kubectl get events "
                f"-n {cluster.namespace} --field-selector involvedObject.name={name}"
            )
        if reason and reason != said:
            warn(f"The pod {name} waits: {why}")
            said = reason
        await asyncio.sleep(AGAIN_SECONDS)


def troubles(pod: Object) -> Iterator[tuple[str, str]]:
    """A word and a sentence for each thing that keeps it from running."""
    status = pod.get("status") or {}
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("reason") == "Unschedulable":
            yield "Unschedulable", f"no node takes it: {one.get('message')}"
    for one in status.get("containerStatuses") or ():
        state = one.get("state") or {}
        held = state.get("waiting") or state.get("terminated") or {}
        if held.get("message"):
            yield str(held.get("reason")), str(held["message"])
    if status.get("message"):
        yield str(status.get("reason")), str(status["message"])


def manifest(name: str, claim: str, told: Object) -> Object:
    """For the restricted profile; `told`: its image, and what decides where it may run."""
    sleeps = f"import time; time.sleep({LIFE_SECONDS})"
    spec: Object = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIFE_SECONDS,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": MAIN,
                "image": told["image"],
                "command": ["python3", "-c", sleeps],
                "resources": {  # limits, too: a quota may count them
                    "requests": {"cpu": "50m", "memory": "64Mi"},
                    "limits": {"cpu": "500m", "memory": "256Mi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": "run", "mountPath": MOUNT, "readOnly": True}],
            }
        ],
        "volumes": [
            {"name": "run", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        ],
    }
    spec |= {key: told[key] for key in PLACED if key in told}
    labels = {"app.kubernetes.io/name": "flexmarl-reader"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }
