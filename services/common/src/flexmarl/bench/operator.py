"""`bench operator`: what many jobs cost the controller, and how soon a job's pods are there.

A controller of this installation, a process here, serves jobs that only it takes up, in a namespace
made for them. No node runs any of it: where there are nodes, pods name a scheduler that does not
exist (and the controller tries these templates first, as it does for every user's). How soon pods
start is measured with a release of the chart, whose images the nodes have.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Sequence

from flexmarl.bench.kube import Kube, Object, definition, jobs_in, kube, own_namespace
from flexmarl.bench.measure import Measure, alone
from flexmarl.bench.operator_pods import LONGEST_SECONDS, document, started
from flexmarl.bench.operator_process import MANAGED_BY, Process, Times, controller, quantile, store
from flexmarl.controller.placing import UNSEEN_SECONDS

NOBODY = "flexmarl-bench-places-nothing"
JOBS = 200
CREATED_AT_ONCE = 16
POLL_SECONDS = 5.0
SETTLED_SECONDS = UNSEEN_SECONDS + 10.0
"""Without a look at any job: nothing happens any more, and it was told that nobody places pods."""
IDLE_SECONDS = 130.0
"""Longer than a round of the resync."""
RECONCILE_SECONDS, MEMORY_MIB, IDLE_SHARE = 1.0, 400.0, 1.0

Say = Callable[[str], None]


def ours(job: Object, *, nodes: bool) -> Object:
    """The same for our controller only; with `nodes`, for a scheduler that does not exist."""
    made = copy.deepcopy(job)
    made["spec"]["managedBy"] = MANAGED_BY
    if nodes:
        template = {"spec": {"schedulerName": NOBODY}}
        roles = ("orchestrator", "worker", "engine", "trainer", "experience")
        made["spec"]["roles"] = {role: {"template": template} for role in roles}
    return made


async def run(
    jobs: int = JOBS, rounds: int = 5, namespace: str | None = None, say: Say = print
) -> list[Measure]:
    """`namespace`: one that a release of the chart serves."""
    async with kube() as at:
        if namespace is not None:
            return await started(at, namespace, rounds, say)
        async with definition(at), own_namespace(at) as own, store(own) as environment:
            say(f"{jobs} jobs in namespace {own}")
            async with controller(environment) as process:
                found = await load(at, own, process, jobs, say)
            say("the controller starts again")
            async with controller(environment) as process:
                return [*found, *await restarted(process, jobs)]


async def load(at: Kube, namespace: str, process: Process, jobs: int, say: Say) -> list[Measure]:
    names, before = [f"bench-{number}" for number in range(jobs)], process.spent
    applied: dict[str, float] = {}
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(_await_statuses(at, namespace, set(names), applied))
        created = await _create(at, namespace, names)
        async with asyncio.timeout(LONGEST_SECONDS):
            await watching
    took = sorted(applied[name] - created[name] for name in names)
    say(f"all applied after {max(applied.values()) - min(created.values()):.1f} s; settling")
    looks, reactions = await _settled(process, jobs)
    say(f"settled after {looks[float('inf')]:.0f} looks; {IDLE_SECONDS:.0f} s of rest")
    spent, began = process.spent, time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    share = (process.spent - spent) / (time.monotonic() - began) * 100
    return [
        alone("one look at a job, p50", [quantile(looks, 0.5)], "s"),
        alone("one look at a job, p99", [quantile(looks, 0.99)], "s", RECONCILE_SECONDS),
        alone("a job named to looked at, p99", [quantile(reactions, 0.99)], "s"),
        alone("controller's time for a job", [(spent - before) / jobs], "s of a core"),
        alone("created to applied, p50", [took[len(took) // 2]], "s"),
        alone("created to applied, p99", [took[min(len(took) - 1, len(took) * 99 // 100)]], "s"),
        alone("controller, peak memory", [process.peak_mib], "MiB", MEMORY_MIB),
        alone("controller at rest", [share], "% of a core", IDLE_SHARE),
    ]


async def restarted(process: Process, jobs: int) -> list[Measure]:
    """All the jobs are there already."""
    looks, reactions = await _settled(process, jobs)
    return [
        alone("restarted: one look at a job, p99", [quantile(looks, 0.99)], "s", RECONCILE_SECONDS),
        alone("restarted: a job named to looked at, p99", [quantile(reactions, 0.99)], "s"),
        alone("restarted: controller, peak memory", [process.peak_mib], "MiB", MEMORY_MIB),
    ]


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


async def _settled(process: Process, jobs: int) -> tuple[Times, Times]:
    """Looks and reactions until each of so many was looked at and nothing happens any more."""
    async with asyncio.timeout(LONGEST_SECONDS):
        before, since = await process.looks(), time.monotonic()
        while before[float("inf")] < jobs or time.monotonic() < since + SETTLED_SECONDS:
            await asyncio.sleep(POLL_SECONDS)
            now = await process.looks()
            if now != before:
                before, since = now, time.monotonic()
        return before, await process.reactions()
