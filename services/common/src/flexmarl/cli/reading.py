"""The files of a MARLJob's run, from the volume that outlives its pods.

Through the orchestrator while it runs, else through a pod that mounts the claim read-only for as
long as this takes; also when the job itself has been deleted and its claim was kept.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from flexmarl.cli.cluster import Cluster, Object, connected
from flexmarl.cli.console import CommandError
from flexmarl.cli.find import RUNS
from flexmarl.cli.jobs import claim_of, looked_for, status_of
from flexmarl.contracts.documents import dump
from flexmarl.controller.names import READER, child

MOUNT, MAIN = "/flexmarl/run", "main"
REPORTED = ("job.yaml", "progress.json", "summary.json", "metrics.jsonl", "evals.jsonl",
            "episodes.jsonl")  # fmt: skip
START_SECONDS = 180.0
"""For the pod, with pulling its image."""
LIFE_SECONDS = 3600
"""After which the pod ends by itself, should nobody delete it."""
STUCK = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"}
PACK = """
import pathlib, sys, tarfile
claim, run, without, *wanted = sys.argv[1:]
runs = sorted(pathlib.Path(claim).glob(run), key=lambda one: one.stat().st_mtime)
if not runs:
    sys.exit(f"the claim holds no {run}")
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as out:
    out.add(runs[-1], runs[-1].name, recursive=False)
    for pattern in wanted:
        for path in sorted(runs[-1].glob(pattern)):
            if path.is_file() and path.name != without:
                out.add(path, f"{runs[-1].name}/{path.relative_to(runs[-1])}")
"""


@dataclass(frozen=True, slots=True)
class Reader:
    cluster: Cluster
    pod: str
    run: str
    """The run's folder in the claim, as a pattern: without its job, the newest of that name."""

    async def copy(self, into: Path, *wanted: str, without: str = "") -> Path:
        """Files of the run that match one of these patterns; the folder below `into` with them."""
        command = ["python3", "-c", PACK, MOUNT, self.run, without, *wanted]
        with tempfile.TemporaryFile(dir=into) as spool:
            async for chunk in self.cluster.output(self.pod, MAIN, command):
                spool.write(chunk)
            spool.seek(0)
            with tarfile.open(fileobj=spool) as archive:
                name = archive.getnames()[0]
                archive.extractall(into, filter="data")
        return into / name


async def copied_run(
    name: str, namespace: str | None, context: str | None, image: str | None
) -> Path:
    """A folder below runs/ with what a report is made of, as it is now."""
    async with reading(name, namespace, context, image) as (reader, job):
        with tempfile.TemporaryDirectory(dir=_made(RUNS), prefix=".") as scratch:
            found = await reader.copy(Path(scratch), *REPORTED)
            root = _made(RUNS / found.name)
            for file in found.iterdir():
                file.replace(root / file.name)
    if job is not None and not (root / "job.yaml").exists():
        plain = {key: job[key] for key in ("apiVersion", "kind", "spec")}
        plain["metadata"] = {key: job["metadata"][key] for key in ("name", "namespace")}
        (root / "job.yaml").write_text(dump(plain))
    return root


@asynccontextmanager
async def reading(
    name: str, namespace: str | None, context: str | None, image: str | None
) -> AsyncIterator[tuple[Reader, Object | None]]:
    """Something that reads the run, and its job unless that was deleted. CommandError."""
    async with connected(namespace, context) as cluster:
        job = await cluster.find_job(name)
        claim = claim_of(job) if job else child(name, "run")
        kept = await cluster.claim(claim)
        if kept is None:
            if job is None:
                await looked_for(cluster, name, namespace, context)  # says what there is instead
            raise CommandError(f"marljob {name} has no claim {claim} yet: nothing to read")
        run = f"{name}-{job['metadata']['uid'][:8]}" if job else f"{name}-????????"
        pods = await cluster.pods(name, "orchestrator") if job else []
        running = [pod for pod in pods if _ready(pod)]
        if running:
            yield Reader(cluster, running[-1]["metadata"]["name"], run), job
            return
        told = json.loads(kept["metadata"].get("annotations", {}).get(READER) or "{}")
        if image:
            told["image"] = image
        if "image" not in told:
            raise CommandError(
                f"No pod of marljob {name} runs, and the claim {claim} does not say which image "
                "reads it: name one with python3 by --image, for example FlexMARL's slim one"
            )
        async with _pod(cluster, name, claim, told) as pod:
            yield Reader(cluster, pod, run), job


@asynccontextmanager
async def _pod(cluster: Cluster, job: str, claim: str, told: Object) -> AsyncIterator[str]:
    """One that has the claim, running; gone afterwards."""
    name = f"{child(job, 'reader')}-{secrets.token_hex(3)}"
    await cluster.create_pod(reader_pod(name, claim, told))
    try:
        async with asyncio.timeout(START_SECONDS):
            while not _ready(pod := await cluster.pod(name)):
                _complain(pod)
                await asyncio.sleep(0.5)
        yield name
    except TimeoutError:
        raise CommandError(
            f"The pod {name}, which is to read the claim {claim}, did not start within "
            f"{START_SECONDS:.0f} s: kubectl describe pod {name} -n {cluster.namespace}"
        ) from None
    finally:
        await cluster.delete_pod(name)


def reader_pod(name: str, claim: str, told: Object) -> Object:
    """For the restricted profile; `told`: its image, and what else of the spec pulling it takes."""
    sleeps = f"import time; time.sleep({LIFE_SECONDS})"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "flexmarl-reader"}},
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIFE_SECONDS,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "imagePullSecrets": told.get("imagePullSecrets", []),
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
                    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [{"name": "run", "mountPath": MOUNT, "readOnly": True}],
                }
            ],
            "volumes": [
                {
                    "name": "run",
                    "persistentVolumeClaim": {"claimName": claim, "readOnly": True},
                }
            ],
        },
    }


def _ready(pod: Object) -> bool:
    status = pod.get("status") or {}
    ready = any(one.get("ready") for one in status.get("containerStatuses") or ())
    return status.get("phase") == "Running" and ready and "deletionTimestamp" not in pod["metadata"]


def _complain(pod: Object) -> None:
    """CommandError: it will not start."""
    name = pod["metadata"]["name"]
    for one in status_of(pod).get("containerStatuses") or ():
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in STUCK:
            raise CommandError(f"The pod {name} cannot start: {waiting.get('message')}")
    for one in status_of(pod).get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("reason") == "Unschedulable":
            raise CommandError(f"No node takes the pod {name}: {one.get('message')}")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
