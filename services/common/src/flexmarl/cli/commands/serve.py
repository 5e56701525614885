"""`flexmarl serve NAME`: one process of the platform, configured by its environment."""

from __future__ import annotations

import importlib
import os
import signal
from typing import Annotated

import typer

from flexmarl.cli.console import INVALID, CommandError
from flexmarl.local.roles import MODULES


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(MODULES)}.")],
) -> None:
    """Run one process of the platform until SIGTERM.

    Its settings come from FLEXMARL_* variables. Besides the exit codes below: 3, the job cannot
    succeed whatever is restarted.
    """
    from flexmarl.contracts.problems import did_you_mean

    if name not in MODULES:
        hint = did_you_mean(name, MODULES)
        raise CommandError(
            f'There is no process "{name}"; there is {", ".join(MODULES)}{hint}', INVALID
        )
    if os.getpid() == 1:
        # The kernel drops what pid 1 of a container does not handle; imports take a while.
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    importlib.import_module(MODULES[name]).main()
