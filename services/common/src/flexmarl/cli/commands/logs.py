"""`flexmarl logs [RUN]`: what the processes of a run or the pods of a MARLJob wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flexmarl.cli.commands.arguments import AnyRunArgument, ContextOption, NamespaceOption
from flexmarl.cli.console import INVALID, CommandError, say, warn

if TYPE_CHECKING:
    from flexmarl.cli.cluster import Cluster, Object


def command(
    run: AnyRunArgument = None,
    role: Annotated[
        str, typer.Option(metavar="ROLE", help="Only these: orchestrator, engine, trainer, ...")
    ] = "",
    *,
    tail: Annotated[int | None, typer.Option(min=1, help="The last so many lines of each.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="On a cluster: also what is yet to come.")
    ] = False,
    previous: Annotated[
        bool, typer.Option("--previous", help="On a cluster: of containers before a restart.")
    ] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Show logs: of the processes of a run, or of the pods of a MARLJob."""
    from flexmarl.cli.commands.target import local_run

    root = local_run(run, namespace, context)
    if root is None:
        from flexmarl.cli.cluster import ask

        ask(_of_pods(str(run), role, tail, namespace, context, follow=follow, previous=previous))
        return
    if follow or previous:
        raise CommandError(
            f"--follow and --previous are for clusters: tail -f {root}/logs/*", INVALID
        )
    _of_run(root, role, tail)


def _of_run(root: Path, role: str, tail: int | None) -> None:
    files = sorted((root / "logs").glob("*.log*"))
    chosen = [file for file in files if file.name.startswith(role)]
    if not chosen:
        names = ", ".join(file.name for file in files) or "none"
        raise CommandError(
            f"{root / 'logs'} has no log of {role or 'any process'}; there is {names}"
        )
    for file in chosen:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in lines[-tail:] if tail else lines:
            say(f"{file.name.partition('.log')[0]} | {line}")


async def _of_pods(
    name: str,
    role: str,
    tail: int | None,
    namespace: str | None,
    context: str | None,
    *,
    follow: bool,
    previous: bool,
) -> None:
    import asyncio

    from flexmarl.cli.cluster import connected
    from flexmarl.cli.jobs import looked_for

    async with connected(namespace, context) as cluster:
        job = await looked_for(cluster, name, namespace, context)
        pods = await cluster.pods(name, role)
        if not pods:
            _say_where(job, role)
            await _say_kept(cluster, name, role)
            return
        started = [pod for pod in pods if _has_log(pod, previous=previous)]
        for pod in pods:
            if pod not in started:
                warn(f"{pod['metadata']['name']}: no log, {_state(pod, previous=previous)}")
        shown = [_show(cluster, pod, tail, follow, previous) for pod in started]
        if follow:
            async with asyncio.TaskGroup() as group:
                for one in shown:
                    group.create_task(one)
        else:
            for one in shown:
                await one


async def _show(
    cluster: Cluster, pod: Object, tail: int | None, follow: bool, previous: bool
) -> None:
    name = pod["metadata"]["name"]
    container = pod["spec"]["containers"][0]["name"]
    lines = cluster.log(name, container, follow=follow, tail=tail, previous=previous)
    async for line in lines:
        say(f"{name} | {line}")


def _container(pod: Object) -> Object:
    statuses = (pod.get("status") or {}).get("containerStatuses") or [{}]
    main = pod["spec"]["containers"][0]["name"]
    found: Object = next((one for one in statuses if one.get("name") == main), {})
    return found


def _has_log(pod: Object, *, previous: bool) -> bool:
    status = _container(pod)
    if previous:
        return bool((status.get("lastState") or {}).get("terminated"))
    state = status.get("state") or {}
    return bool(state.get("running") or state.get("terminated"))


def _state(pod: Object, *, previous: bool) -> str:
    waiting = (_container(pod).get("state") or {}).get("waiting") or {}
    if previous and not waiting:
        return "its container has not been restarted"
    phase = (pod.get("status") or {}).get("phase", "Pending")
    return f"{phase}: {waiting.get('reason', '')} {waiting.get('message', '')}".strip(": ")


def _say_where(job: Object, role: str) -> None:
    """There are no pods: what is known, and where the rest lies."""
    from flexmarl.cli.jobs import claim_of, phase_of, status_of

    name, status = job["metadata"]["name"], status_of(job)
    warn(f"marljob {name} ({phase_of(job)}) has no pods{f' of {role}' if role else ''}.")
    failure = status.get("failure")
    if isinstance(failure, dict) and failure:
        for key in ("role", "pod", "exitCode", "message"):
            if failure.get(key) not in (None, ""):
                say(f"{key}: {failure[key]}")
    warn(f"Metrics, episodes and checkpoints lie in the claim {claim_of(job)}.")


async def _say_kept(cluster: Cluster, job: str, role: str) -> None:
    """The end of what each pod said, which the controller keeps when a job ends."""
    from flexmarl.controller.names import EVIDENCE, child

    kept = await cluster.config_map(child(job, EVIDENCE))
    prefix = child(job, role.removeprefix("rollout-")) if role else ""
    for name, text in sorted(((kept or {}).get("data") or {}).items()):
        pod = name.removesuffix(".log")
        if pod.startswith(prefix):
            for line in str(text).splitlines():
                say(f"{pod} | {line}")
