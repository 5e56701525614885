"""How soon a release of the chart has a job's pods: created, and all of them ready."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

from flexmarl.bench.kube import Kube, Object, jobs_in, until
from flexmarl.bench.measure import Measure, alone
from flexmarl.contracts.api import API_VERSION
from flexmarl.controller.cluster import RefusedError
from flexmarl.controller.names import JOB_LABEL
from flexmarl.runtime.errors import JobFailedError

LONGEST_SECONDS = 900.0
FIRST_POD_SECONDS, READY_SECONDS = 2.0, 15.0

Say = Callable[[str], None]


def document(name: str, namespace: str) -> Object:
    """Two agents of two scripted policies, learning with tiny models."""
    names = ("solver", "verifier")
    model = {"uri": "random://llama?hidden=16&layers=1&heads=2&context=512"}
    return {
        "apiVersion": API_VERSION,
        "kind": "MARLJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "policies": [
                {"name": each, "model": model, "engine": {"kind": "scripted"}} for each in names
            ],
            "agents": [
                {"name": each, "policy": each, "sampling": {"maxTokens": 12}} for each in names
            ],
            "workflow": {"name": "solver-verifier"},
            "data": {"uri": "gym://chain_sum", "size": 16},
            "steps": 2,
            "batch": {"tasksPerStep": 2, "groupSize": 2},
            "checkpoint": {"claim": {"retain": False}},
        },
    }


async def started(at: Kube, namespace: str, rounds: int, say: Say) -> list[Measure]:
    """A job at a time, `rounds` times after one that warms the nodes' caches."""
    times = [await _start_one(at, namespace, say) for _ in range(rounds + 1)][1:]
    return [
        alone("created to first pod", [first for first, _ in times], "s", FIRST_POD_SECONDS),
        alone("created to all pods ready", [ready for _, ready in times], "s", READY_SECONDS),
    ]


async def _start_one(at: Kube, namespace: str, say: Say) -> tuple[float, float]:
    """JobFailedError: nobody starts it."""
    name = f"bench-{secrets.token_hex(3)}"
    job = document(name, namespace)
    job["spec"]["steps"] = 100_000  # it does not end before its pods are ready
    began = time.monotonic()
    try:
        await at.call("POST", jobs_in(namespace), job)
    except RefusedError as error:
        raise JobFailedError(f"no MARLJob can be made in namespace {namespace}: {error}") from error
    says = ["nobody has taken it up: does a release serve this namespace?"]
    try:
        async with asyncio.timeout(LONGEST_SECONDS), asyncio.TaskGroup() as group:
            pod = group.create_task(_first_pod(at, namespace, name))
            ready = await _ready(at, namespace, name, says)
            if ready is None:
                pod.cancel()
    except TimeoutError:
        ready = None
    finally:
        await at.gone(f"{jobs_in(namespace)}/{name}")
        await _no_pods(at, namespace, name)
    if ready is None:
        raise JobFailedError(f"{name} does not start: {says[-1]}")
    first, ready = pod.result() - began, ready - began
    say(f"{name}: first pod after {first:.2f} s, all ready after {ready:.1f} s")
    return first, ready


async def _first_pod(at: Kube, namespace: str, job: str) -> float:
    async for kind, _ in at.watch(f"/api/v1/namespaces/{namespace}/pods", f"{JOB_LABEL}={job}"):
        if kind == "ADDED":
            break
    return time.monotonic()


async def _ready(at: Kube, namespace: str, name: str, says: list[str]) -> float | None:
    """When; None: it has failed. `says` gets what its status says meanwhile."""
    async for _, job in at.watch(jobs_in(namespace)):
        status = job.get("status") or {}
        if job["metadata"]["name"] != name or not status:
            continue
        says.append(": ".join(str(status.get(each)) for each in ("phase", "reason", "message")))
        if status.get("phase") == "Failed":
            return None
        conditions = status.get("conditions", ())
        if any(one["type"] == "PodsReady" and one["status"] == "True" for one in conditions):
            break
    return time.monotonic()


async def _no_pods(at: Kube, namespace: str, job: str) -> None:
    async def none() -> bool:
        pods = (await at.call("GET", f"/api/v1/namespaces/{namespace}/pods"))["items"]
        return not any(job == pod["metadata"].get("labels", {}).get(JOB_LABEL) for pod in pods)

    await until(none, LONGEST_SECONDS)
