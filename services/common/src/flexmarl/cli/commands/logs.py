"""`flexmarl logs [RUN]`: what the processes of a run or the pods of a MARLJob wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flexmarl.cli.commands.arguments import AnyRunArgument, ContextOption, NamespaceOption
from flexmarl.cli.console import FAILED, INVALID, CommandError, leave, say

ALIASES = {"worker": "rollout-worker"}
"""What job files call a role -> what its processes are called."""


def command(
    run: AnyRunArgument = None,
    role: Annotated[
        str, typer.Option(metavar="ROLE", help="Only these: orchestrator, engine, trainer, ...")
    ] = "",
    *,
    tail: Annotated[int | None, typer.Option(min=1, help="The last so many lines of each.")] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="On a cluster: also what is yet to come, until the job's end."
        ),
    ] = False,
    previous: Annotated[
        bool, typer.Option("--previous", help="On a cluster: of containers before a restart.")
    ] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Show what the processes of a run, or the pods of a job, wrote.

    Of a pod that is still being prepared, that of the container which does so. With --follow also
    of pods and containers that come later; exit code 0 then says that the job is complete.
    """
    from flexmarl.cli.commands.target import local_run

    root = local_run(run, namespace, context)
    role = ALIASES.get(role, role)
    if root is None:
        from flexmarl.cli.connection import ask
        from flexmarl.cli.following import follow_job
        from flexmarl.cli.podlogs import Wanted, check_role, show

        check_role(role)
        if follow and previous:
            raise CommandError("What was before a restart is over: leave out --follow", INVALID)
        read = follow_job if follow else show
        if not ask(read(str(run), namespace, context, Wanted(role, tail, previous))):
            leave(FAILED)
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
