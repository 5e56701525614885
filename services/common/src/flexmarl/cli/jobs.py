"""What the commands do to MARLJobs on a cluster, and know of them."""

from __future__ import annotations

from typing import Any

from flexmarl.cli.cluster import Cluster
from flexmarl.cli.connection import connected
from flexmarl.cli.console import CommandError
from flexmarl.cli.find import RUNS
from flexmarl.cli.refusals import Object
from flexmarl.controller.names import child

ENDED = ("Complete", "Failed")
UNDER_WAY = ("Starting", "Running")


async def suspend(name: str, namespace: str | None, context: str | None, value: bool) -> str:
    """Set `spec.suspend`; the namespace in which it was. CommandError: the job has ended."""
    async with connected(namespace, context) as cluster:
        job = await cluster.job(name)
        phase = phase_of(job)
        if phase in ENDED:
            raise CommandError(
                f"marljob {name} has ended ({phase}); nothing can be changed any more"
            )
        if bool(job["spec"].get("suspend")) is value:
            raise CommandError(
                f"marljob {name} is {'suspended already' if value else 'not suspended'}"
            )
        await cluster.change_job(name, {"suspend": value})
        return cluster.namespace


async def find(name: str, namespace: str | None, context: str | None) -> Object:
    async with connected(namespace, context) as cluster:
        return await looked_for(cluster, name, namespace, context)


async def looked_for(
    cluster: Cluster, name: str, namespace: str | None, context: str | None
) -> Object:
    """The MARLJob; where neither namespace nor context is given, a run was meant as well."""
    try:
        return await cluster.job(name)
    except CommandError as error:
        if namespace or context:
            raise
        raise CommandError(f'There is no run "{name}" in {RUNS.absolute()}. {error}') from None


def phase_of(job: Object) -> str:
    return str(status_of(job).get("phase") or "Pending")


def status_of(job: Object) -> dict[str, Any]:
    status = job.get("status")
    return status if isinstance(status, dict) else {}


def claim_of(job: Object) -> str:
    """The volume that holds the run's files, and outlives its pods."""
    checkpoint = job["spec"].get("checkpoint") or {}
    given = (checkpoint.get("claim") or {}).get("name")
    return str(given or child(job["metadata"]["name"], "run"))
