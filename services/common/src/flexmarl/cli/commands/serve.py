"""`flexmarl serve NAME`: one process of the platform, configured by its environment."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from flexmarl.cli.console import INVALID, CommandError

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


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(PROCESSES)}.")],
) -> None:
    """Run one process in the foreground until SIGTERM; settings come from FLEXMARL_* variables.

    Besides the exit codes below: 3, the job cannot succeed whatever is restarted.
    """
    from flexmarl.contracts.problems import did_you_mean

    if name not in PROCESSES:
        hint = did_you_mean(name, PROCESSES)
        raise CommandError(
            f'There is no process "{name}"; there is {", ".join(PROCESSES)}{hint}', INVALID
        )
    importlib.import_module(PROCESSES[name]).main()
