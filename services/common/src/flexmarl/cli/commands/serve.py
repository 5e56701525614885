"""`flexmarl serve NAME`: one process of the platform, configured by its environment."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from flexmarl.cli.console import INVALID, CommandError, leave, warn

PROCESSES = {
    "orchestrator": "flexmarl.orchestrator.process",
    "rollout-worker": "flexmarl.rollout.process",
    "engine": "flexmarl.rollout.engines.process",
    "trainer": "flexmarl.trainer.process",
    "experience": "flexmarl.experience.process",
    "weights": "flexmarl.tensors.process",
    "store": "flexmarl.experience.embedded",
}
"""Name -> module whose `main()` is the process."""
HOPELESS = 3
"""Exit code of a process that a restart cannot mend."""


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(PROCESSES)}.")],
) -> None:
    """Run one process in the foreground until SIGTERM; settings come from FLEXMARL_* variables.

    Besides the exit codes below: 3, the job cannot succeed whatever is restarted.
    """
    from pydantic import ValidationError

    from flexmarl.contracts.problems import JobFileError, nearest

    if name not in PROCESSES:
        near = nearest(name, PROCESSES)
        hint = f"; did you mean {near}?" if near else ""
        raise CommandError(
            f'There is no process "{name}"; there is {", ".join(PROCESSES)}{hint}', INVALID
        )
    try:
        importlib.import_module(PROCESSES[name]).main()
    except JobFileError as error:
        warn(str(error))
        leave(HOPELESS)
    except ValidationError as error:
        if error.title != "Settings":
            raise
        for found in error.errors():
            variable = f"FLEXMARL_{'_'.join(map(str, found['loc'])).upper()}"
            warn(f"{variable}: {found['msg']}")
        leave(HOPELESS)
