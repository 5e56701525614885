"""`flexmarl status [RUN]`: where a run or a MARLJob stands."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from flexmarl.cli.commands.arguments import AnyRunArgument, ContextOption, NamespaceOption
from flexmarl.cli.rundata import RunData, number


def command(
    run: AnyRunArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Show where a run or a MARLJob stands, also while it goes on."""
    from flexmarl.cli.commands.target import local_run

    root = local_run(run, namespace, context)
    if root is None:
        _of_job(str(run), namespace, context, as_json=as_json)
        return
    from flexmarl.cli.terminal import Terminal
    from flexmarl.cli.view import overview

    data = RunData(root)
    data.refresh()
    if as_json:
        _print_json(data)
        return
    seconds = data.seconds
    if seconds is not None and data.phase in ("Running", "Evaluating") and data.metrics:
        seconds += max(0.0, time.time() - (number(data.metrics[-1], "time") or time.time()))
    console = Terminal()
    console.print(overview(data, phase=data.phase, elapsed=seconds))
    console.print(f"[dim]{data.root}[/dim]" if console.is_terminal else str(data.root))


def _of_job(name: str, namespace: str | None, context: str | None, *, as_json: bool) -> None:
    import json

    from flexmarl.cli.connection import ask
    from flexmarl.cli.console import say
    from flexmarl.cli.jobs import find, phase_of, status_of
    from flexmarl.cli.jobview import overview
    from flexmarl.cli.terminal import Terminal

    job = ask(find(name, namespace, context))
    if as_json:
        metadata = job["metadata"]
        told = {"name": metadata["name"], "namespace": metadata["namespace"]}
        say(json.dumps(told | {"phase": phase_of(job), "status": status_of(job)}))
        return
    Terminal().print(overview(job))


def _print_json(data: RunData) -> None:
    import json

    from flexmarl.cli.console import say

    say(
        json.dumps(
            {
                "run": str(data.root),
                "phase": data.phase,
                "progress": data.progress._asdict(),
                "last_step": data.metrics[-1] if data.metrics else None,
                "evals": data.evals,
                "summary": data.summary,
                "notes": data.notes,
            }
        )
    )
