"""`flexmarl preflight PLAN`: what the first container of each pod does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flexmarl.cli.console import leave


def command(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="What is to be done, as JSON.")],
    message: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write the outcome, as one line of JSON."),
    ] = None,
) -> None:
    """Look at what a pod was given and fetch what it needs.

    The controller runs it in each pod. Exit code 75: may be tried again; 3: may not, until the job
    is mended.
    """
    from flexmarl.preflight.running import run

    leave(run(plan, message))
