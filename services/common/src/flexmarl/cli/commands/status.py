"""`flexmarl status [RUN]`: where a run stands."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from flexmarl.cli.commands.arguments import RunArgument
from flexmarl.cli.rundata import RunData, number


def command(
    run: RunArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show where a run stands, also while it goes on."""
    from rich.console import Console

    from flexmarl.cli.find import find_run
    from flexmarl.cli.view import overview

    data = RunData(find_run(run))
    data.refresh()
    if as_json:
        _print_json(data)
        return
    seconds = data.seconds
    if seconds is not None and data.phase in ("Running", "Evaluating") and data.metrics:
        seconds += max(0.0, time.time() - (number(data.metrics[-1], "time") or time.time()))
    console = Console(highlight=False)
    console.print(overview(data, phase=data.phase, elapsed=seconds))
    console.print(f"[dim]{data.root}[/dim]" if console.is_terminal else str(data.root))


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
