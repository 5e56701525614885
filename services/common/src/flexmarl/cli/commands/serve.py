"""`flexmarl serve NAME`: one process of the platform, configured by its environment."""

from __future__ import annotations

from typing import Annotated

import typer

from flexmarl.cli.console import INVALID, CommandError
from flexmarl.local.roles import MODULES
from flexmarl.local.serving import main_of


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
    main_of(name)()
