"""`flexmarl preflight PLAN`: the first container of each pod."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from flexmarl.cli.console import leave, warn

HOPELESS = 3


def command(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="What is to be done, as JSON.")],
    message: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write the outcome, as one line of JSON."),
    ] = None,
    store_url: Annotated[
        str, typer.Option(envvar="FLEXMARL_STORE_URL", metavar="URL", show_envvar=True)
    ] = "",
) -> None:
    """Look at what a pod was given and fetch what it needs; the controller runs it in each pod.

    Exit code 75: may be tried again; 3: may not, until the job is mended.
    """
    from flexmarl.contracts.preparation import PASSING, Kind, Preparation
    from flexmarl.preflight.preparing import blocking, prepare

    signal.signal(signal.SIGTERM, _stop)  # the first process of a container has no default
    wanted = Preparation.model_validate_json(plan)
    if wanted.sources or wanted.code:
        from flexmarl.runtime.logging import configure

        configure("preflight", "json")
    report = prepare(wanted, store_url)
    for found in report.findings:
        warn(f"{found.reason}: {found.message}")
    if message is not None:
        message.write_text(report.text() + "\n", encoding="utf-8")
    if any(found.kind is Kind.HOPELESS for found in report.findings):
        leave(HOPELESS)
    if blocking(report.findings):
        leave(PASSING)


def _stop(number: int, _frame: object) -> None:
    os._exit(128 + number)  # all that is on disk may be left as it is, at any moment
