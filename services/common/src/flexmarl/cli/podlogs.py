"""What the pods of a MARLJob wrote, and what was kept of it when they are gone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass

from flexmarl.cli.cluster import Cluster
from flexmarl.cli.connection import connected
from flexmarl.cli.console import INVALID, CommandError, say, warn
from flexmarl.cli.jobs import claim_of, looked_for, phase_of, status_of
from flexmarl.cli.refusals import Object, RefusalError
from flexmarl.contracts.problems import did_you_mean
from flexmarl.controller.names import (
    ENGINE,
    EVIDENCE,
    EXPERIENCE,
    ORCHESTRATOR,
    TRAINER,
    WORKER,
    child,
)
from flexmarl.controller.names import (
    ROLES as KEPT_ROLES,
)

ROLES = (ORCHESTRATOR, WORKER, ENGINE, TRAINER, EXPERIENCE)


@dataclass(frozen=True, slots=True)
class Wanted:
    role: str = ""
    tail: int | None = None
    previous: bool = False


def check_role(role: str) -> None:
    """CommandError: there is none of that name."""
    if role and role not in ROLES:
        hint = did_you_mean(role, ROLES)
        raise CommandError(f'There is no role "{role}"; there is {", ".join(ROLES)}{hint}', INVALID)


async def show(name: str, namespace: str | None, context: str | None, wanted: Wanted) -> bool:
    """Whether everything there is could be shown. CommandError."""
    async with connected(namespace, context) as cluster:
        job = await looked_for(cluster, name, namespace, context)
        pods = await cluster.pods(name, wanted.role)
        if not pods:
            await show_kept(cluster, job, wanted)
        return await show_pods(cluster, pods, wanted)


async def show_pods(cluster: Cluster, pods: Iterable[Object], wanted: Wanted) -> bool:
    """One after another; what one lacks does not end the others."""
    whole = True
    for pod in pods:
        container = container_of(pod, previous=wanted.previous)
        if container:
            whole &= await _show(cluster, pod, container, wanted)
        else:
            warn(f"{pod['metadata']['name']}: no log, {state(pod, previous=wanted.previous)}")
    return whole


async def _show(cluster: Cluster, pod: Object, container: str, wanted: Wanted) -> bool:
    name, label = pod["metadata"]["name"], label_of(pod, container)
    log = cluster.log(name, container, tail=wanted.tail, previous=wanted.previous)
    try:
        async with aclosing(log) as lines:  # here, whatever ends it, not when the loop ends
            async for line in lines:
                say(f"{label} | {line}")
    except RefusalError as error:
        if error.status in (401, 403):
            raise
        warn(f"{label}: {error}")
        return error.status == 404  # it went after it was listed
    return True


def label_of(pod: Object, container: str) -> str:
    """What each line begins with."""
    name = str(pod["metadata"]["name"])
    return name if container == _main(pod) else f"{name} {container}"


def container_of(pod: Object, *, previous: bool) -> str:
    """The one to read: main, before its first start the last that prepares it; empty: none yet."""
    first = [one["name"] for one in pod["spec"].get("initContainers", ())]
    for name in (_main(pod), *reversed(first)):
        status = status_in(pod, name)
        now, before = status.get("state") or {}, status.get("lastState") or {}
        started = now.get("running") or now.get("terminated") or before.get("terminated")
        if before.get("terminated") if previous else started:
            return str(name)
    return ""


def state(pod: Object, *, previous: bool) -> str:
    """Why there is no log."""
    waiting = (status_in(pod, _main(pod)).get("state") or {}).get("waiting") or {}
    if previous and not waiting:
        return "its container has not been restarted"
    phase = (pod.get("status") or {}).get("phase", "Pending")
    return f"{phase}: {waiting.get('reason', '')} {waiting.get('message', '')}".strip(": ")


def _main(pod: Object) -> str:
    return str(pod["spec"]["containers"][0]["name"])


def status_in(pod: Object, container: str) -> Object:
    status = pod.get("status") or {}
    every = [
        one
        for kind in ("containerStatuses", "initContainerStatuses")
        for one in status.get(kind) or ()
    ]
    found: Object = next((one for one in every if one.get("name") == container), {})
    return found


async def show_kept(cluster: Cluster, job: Object, wanted: Wanted) -> None:
    """There are no pods: what is known, and where the rest lies."""
    name, status, role = job["metadata"]["name"], status_of(job), wanted.role
    warn(f"marljob {name} ({phase_of(job)}) has no pods{f' of {role}' if role else ''}.")
    failure = status.get("failure")
    if isinstance(failure, dict) and failure:
        for key in ("role", "pod", "exitCode", "message"):
            if failure.get(key) not in (None, ""):
                say(f"{key}: {failure[key]}")
    warn(f"Metrics, episodes and checkpoints lie in the claim {claim_of(job)}.")
    kept = await cluster.config_map(child(name, EVIDENCE))
    for line in kept_lines(kept or {}, wanted):
        say(line)


def kept_lines(config_map: Object, wanted: Wanted) -> Iterator[str]:
    """The end of what each pod said, which the controller keeps when a job ends."""
    notes = (config_map.get("metadata") or {}).get("annotations") or {}
    roles = json.loads(notes.get(KEPT_ROLES, "{}"))
    for name, text in sorted((config_map.get("data") or {}).items()):
        if not wanted.role or roles.get(name) == wanted.role:
            lines = str(text).splitlines()
            for line in lines[-wanted.tail :] if wanted.tail else lines:
                yield f"{name.removesuffix('.log')} | {line}"
