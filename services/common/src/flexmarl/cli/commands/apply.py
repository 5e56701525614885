"""`flexmarl apply JOB`: a job and the files beside it onto a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flexmarl.cli.commands.arguments import ContextOption, JobArgument, NamespaceOption, SetOption
from flexmarl.cli.console import INVALID, CommandError, say, warn

if TYPE_CHECKING:
    from flexmarl.contracts.reading import JobFile


def command(
    job: JobArgument,
    overrides: SetOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Take over fields that somebody else has set.")
    ] = False,
) -> None:
    """Apply a job and the files beside it to a cluster.

    Data and code that the job names relative to its folder go along as a ConfigMap, up to 900 KiB;
    it is deleted with the job.
    """
    from flexmarl.cli.checks import checked_job
    from flexmarl.cli.connection import ask
    from flexmarl.contracts.cluster_rules import only_on_one_machine

    file = checked_job(job, overrides or ())
    for problem in file.warnings:
        warn(f"warning: {problem}")
    if without_meaning := only_on_one_machine(file.document):
        warn(f"note: on a cluster without a meaning: {', '.join(without_meaning)}")
    written = file.document["metadata"].get("namespace")
    if namespace and written and namespace != written:
        raise CommandError(
            f"{job} says namespace {written}, --namespace says {namespace}: give one", INVALID
        )
    ask(_apply(file, namespace or written, context, force=force))


async def _apply(file: JobFile, namespace: str | None, context: str | None, *, force: bool) -> None:
    from flexmarl.cli.commands.target import options
    from flexmarl.cli.connection import connected
    from flexmarl.cli.pack import pack

    async with connected(namespace, context) as cluster:
        packed = pack(file, cluster.namespace)
        name = file.job.metadata.name
        await cluster.apply_job(packed.job, force=force, dry_run=True)  # before anything is made
        before = await cluster.find_job(name)
        if packed.config_map is not None:
            await cluster.apply_config_map(packed.config_map)
        after = await cluster.apply_job(packed.job, force=force)
        if packed.config_map is not None:
            packed.config_map["metadata"]["ownerReferences"] = [
                {
                    "apiVersion": after["apiVersion"],
                    "kind": after["kind"],
                    "name": name,
                    "uid": after["metadata"]["uid"],
                }
            ]
            await cluster.apply_config_map(packed.config_map)
            files = "1 file" if packed.files == 1 else f"{packed.files} files"
            size = f"{packed.size / 1024:.1f} KiB"
            say(f"configmap {packed.config_map['metadata']['name']}: {files}, {size}")
        same = before and before["metadata"]["generation"] == after["metadata"]["generation"]
        what = "created" if before is None else "unchanged" if same else "changed"
        say(f"marljob {name} in namespace {cluster.namespace}: {what}")
        say(f"See how it goes: flexmarl status {name} {options(cluster.namespace, context)}")
