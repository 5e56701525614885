"""`bench operator`: what many jobs cost the controller, and how soon a job's pods are there.

A controller of this installation, a process here, serves jobs that only it takes up, in a namespace
made for them. No node runs any of it: where there are nodes, pods name a scheduler that does not
exist (and the controller tries these templates first, as it does for every user's). How soon pods
start is measured with a release of the chart, whose images the nodes have.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import secrets
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from flexmarl.bench.kube import Kube, Object, definition, jobs_in, kube, own_namespace, until
from flexmarl.bench.measure import Measure, alone
from flexmarl.bench.scale import usage
from flexmarl.contracts.api import API_VERSION
from flexmarl.controller.names import JOB_LABEL
from flexmarl.runtime.errors import JobFailedError

MANAGED_BY = "flexmarl.io/bench"
NOBODY = "flexmarl-bench-places-nothing"
JOBS = 200
CREATED_AT_ONCE = 16
SETTLED_SECONDS = 10.0
"""Without a look at any job: nothing happens any more."""
START_SECONDS, LONGEST_SECONDS = 180.0, 900.0
IDLE_SECONDS = 130.0
"""Longer than a round of the resync."""
RECONCILE_SECONDS, MEMORY_MIB, IDLE_SHARE = 1.0, 400.0, 1.0
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


def ours(job: Object, *, nodes: bool) -> Object:
    """The same for our controller only; with `nodes`, for a scheduler that does not exist."""
    made = copy.deepcopy(job)
    made["spec"]["managedBy"] = MANAGED_BY
    if nodes:
        template = {"spec": {"schedulerName": NOBODY}}
        roles = ("orchestrator", "worker", "engine", "trainer", "experience")
        made["spec"]["roles"] = {role: {"template": template} for role in roles}
    return made


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    metrics: str

    async def looks(self) -> dict[float, float]:
        """Looks at jobs so far that took at most so many seconds."""
        found = {}
        for name, labels, value in await self._samples("flexmarl_controller_reconcile_seconds"):
            if name.endswith("_bucket"):
                found[float(labels["le"])] = value
        return found

    async def _samples(self, family: str) -> list[tuple[str, Mapping[str, str], float]]:
        text = await asyncio.to_thread(_read, self.metrics)
        return [
            (sample.name, sample.labels, sample.value)
            for each in text_string_to_metric_families(text)
            if each.name == family
            for sample in each.samples
        ]

    @property
    def peak_mib(self) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


async def run(
    jobs: int = JOBS, rounds: int = 5, namespace: str | None = None, say: Say = print
) -> list[Measure]:
    """`namespace`: one that a release of the chart serves."""
    async with kube() as at:
        if namespace is not None:
            return await started(at, namespace, rounds)
        async with definition(at), own_namespace(at) as own, controller(own) as process:
            say(f"{jobs} jobs in namespace {own}")
            return await load(at, own, process, jobs, say)


async def load(at: Kube, namespace: str, process: Process, jobs: int, say: Say) -> list[Measure]:
    names = [f"bench-{number}" for number in range(jobs)]
    before = await process.looks()
    applied: dict[str, float] = {}
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(_await_statuses(at, namespace, set(names), applied))
        created = await _create(at, namespace, names)
        async with asyncio.timeout(LONGEST_SECONDS):
            await watching
    took = sorted(applied[name] - created[name] for name in names)
    say(f"all applied after {max(applied.values()) - min(created.values()):.1f} s; settling")
    busy = await _settled(process)
    looks = {bound: count - before.get(bound, 0) for bound, count in busy.items()}
    say(f"settled after {looks[float('inf')]:.0f} looks; {IDLE_SECONDS:.0f} s of rest")
    (spent, _), began = usage(process.pid), time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    share = (usage(process.pid)[0] - spent) / (time.monotonic() - began) * 100
    return [
        alone("one look at a job, p50", [quantile(looks, 0.5)], "s"),
        alone("one look at a job, p99", [quantile(looks, 0.99)], "s", RECONCILE_SECONDS),
        alone("created to applied, p50", [took[len(took) // 2]], "s"),
        alone("created to applied, p99", [took[min(len(took) - 1, len(took) * 99 // 100)]], "s"),
        alone("controller, peak memory", [process.peak_mib], "MiB", MEMORY_MIB),
        alone("controller at rest", [share], "% of a core", IDLE_SHARE),
    ]


async def started(at: Kube, namespace: str, rounds: int) -> list[Measure]:
    """A job at a time, `rounds` times after one that warms the nodes' caches."""
    times = [await _start_one(at, namespace) for _ in range(rounds + 1)][1:]
    return [
        alone("created to first pod", [first for first, _ in times], "s", FIRST_POD_SECONDS),
        alone("created to all pods ready", [ready for _, ready in times], "s", READY_SECONDS),
    ]


async def _start_one(at: Kube, namespace: str) -> tuple[float, float]:
    name = f"bench-{secrets.token_hex(3)}"
    job, path = document(name, namespace), f"{jobs_in(namespace)}/{name}"
    job["spec"]["steps"] = 100_000  # it does not end before its pods are ready
    began = time.monotonic()
    try:
        async with asyncio.timeout(LONGEST_SECONDS), asyncio.TaskGroup() as group:
            first = group.create_task(_first_pod(at, namespace, name))
            await at.call("POST", jobs_in(namespace), job)
            ready = group.create_task(_ready(at, namespace, name))
        return first.result() - began, ready.result() - began
    finally:
        await at.gone(path)
        await _no_pods(at, namespace, name)


async def _first_pod(at: Kube, namespace: str, job: str) -> float:
    async for kind, _ in at.watch(f"/api/v1/namespaces/{namespace}/pods", f"{JOB_LABEL}={job}"):
        if kind == "ADDED":
            break
    return time.monotonic()


async def _ready(at: Kube, namespace: str, name: str) -> float:
    async for _, job in at.watch(jobs_in(namespace)):
        status = job.get("status", {})
        if job["metadata"]["name"] != name:
            continue
        if status.get("phase") == "Failed":
            raise JobFailedError(f"{name}: {status.get('reason')}: {status.get('message')}")
        conditions = status.get("conditions", ())
        if any(one["type"] == "PodsReady" and one["status"] == "True" for one in conditions):
            break
    return time.monotonic()


async def _no_pods(at: Kube, namespace: str, job: str) -> None:
    async def none() -> bool:
        pods = (await at.call("GET", f"/api/v1/namespaces/{namespace}/pods"))["items"]
        return not any(job == pod["metadata"].get("labels", {}).get(JOB_LABEL) for pod in pods)

    await until(none, LONGEST_SECONDS)


async def _create(at: Kube, namespace: str, names: Sequence[str]) -> dict[str, float]:
    """When each was created."""
    gate, created = asyncio.Semaphore(CREATED_AT_ONCE), {}
    nodes = bool((await at.call("GET", "/api/v1/nodes"))["items"])

    async def one(name: str) -> None:
        async with gate:
            await at.call("POST", jobs_in(namespace), ours(document(name, namespace), nodes=nodes))
            created[name] = time.monotonic()

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(one(name))
    return created


async def _await_statuses(
    at: Kube, namespace: str, missing: set[str], seen: dict[str, float]
) -> None:
    """A job's status is written when all of it is applied."""
    async for _, job in at.watch(jobs_in(namespace)):
        name = job["metadata"]["name"]
        if name in missing and job.get("status", {}).get("phase"):
            seen[name] = time.monotonic()
            missing.discard(name)
        if not missing:
            return


async def _settled(process: Process) -> dict[float, float]:
    async with asyncio.timeout(LONGEST_SECONDS):
        before = await process.looks()
        while True:
            await asyncio.sleep(SETTLED_SECONDS)
            now = await process.looks()
            if now == before:
                return now
            before = now


def quantile(cumulative: Mapping[float, float], share: float) -> float:
    """Of a histogram, upper bound -> how many are not above; linear inside a bucket."""
    bounds = sorted(cumulative)
    wanted, below, low = share * cumulative[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        count = cumulative[bound]
        if count >= wanted and count > below:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (wanted - below) / (count - below)
        below, low = count, bound
    return low


@asynccontextmanager
async def controller(namespace: str) -> AsyncIterator[Process]:
    """One of this installation, with a store of its own."""
    store_port, metrics_port = _free_port(), _free_port()
    url = f"redis://bench:{secrets.token_hex(8)}@127.0.0.1:{store_port}"
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flexmarl-bench-")))
        image = "registry.invalid/flexmarl"  # no node ever pulls it
        environment = {
            "FLEXMARL_STORE_URL": url,
            "FLEXMARL_STORE_DIR": str(directory),
            "FLEXMARL_NAMESPACES": json.dumps([namespace]),
            "FLEXMARL_MANAGED_BY": MANAGED_BY,
            "FLEXMARL_IMAGES": json.dumps(dict.fromkeys(("slim", "trainer", "vllm"), image)),
            "FLEXMARL_METRICS_PORT": str(metrics_port),
            "FLEXMARL_LOG_FORMAT": "json",
        }
        await stack.enter_async_context(_serving("store", directory, environment))
        pid = await stack.enter_async_context(_serving("controller", directory, environment))
        found = Process(pid, f"http://127.0.0.1:{metrics_port}/metrics")

        async def answers() -> bool:
            try:
                return bool(await found.looks())
            except OSError:
                return False

        await until(answers, START_SECONDS)
        yield found


@asynccontextmanager
async def _serving(
    name: str, directory: Path, environment: Mapping[str, str]
) -> AsyncIterator[int]:
    with (directory / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flexmarl.cli", "serve", name),
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
        )
    try:
        yield process.pid
        if process.returncode is not None:
            said = (directory / f"{name}.log").read_text(errors="replace")
            raise JobFailedError(f"{name} ended: {said[-2000:]}")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        found: bytes = response.read()
    return found.decode()


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port
