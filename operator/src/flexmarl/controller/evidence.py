"""What stays of a job's pods when they are gone: the end of what each said, in a ConfigMap."""

from __future__ import annotations

import asyncio

from flexmarl.controller.cache import Key, Objects
from flexmarl.controller.cluster import Cluster
from flexmarl.controller.names import EVIDENCE, Manifest, child, labels, owner

LINES = 400
MOST_BYTES = 900_000
"""Of a ConfigMap; the API server takes 1 MiB."""


def name_of(job: str) -> str:
    return child(job, EVIDENCE)


async def keep(cluster: Cluster, key: Key, uid: str, there: Objects) -> None:
    """Write it down, unless that was done for this job."""
    name = name_of(key.name)
    if await cluster.get("ConfigMap", key.namespace, name) is not None:
        return
    pods = [pod["metadata"]["name"] for pod in there.of("Pod")]
    if not pods:
        return
    most = MOST_BYTES // len(pods)
    said = await asyncio.gather(
        *(cluster.logs(key.namespace, pod, lines=LINES, most=most) for pod in pods)
    )
    await cluster.apply(manifest(key, uid, dict(zip(pods, said, strict=True))))


def manifest(key: Key, uid: str, said: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name_of(key.name),
            "namespace": key.namespace,
            "labels": labels(key.name, EVIDENCE),
            "ownerReferences": [owner(key.name, uid)],
        },
        "data": {f"{pod}.log": text for pod, text in said.items() if text},
    }
