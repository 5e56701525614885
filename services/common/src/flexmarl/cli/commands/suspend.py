"""`flexmarl suspend NAME`: on a cluster."""

from __future__ import annotations

from flexmarl.cli.commands.arguments import ContextOption, NameArgument, NamespaceOption
from flexmarl.cli.console import say


def command(
    name: NameArgument, namespace: NamespaceOption = None, context: ContextOption = None
) -> None:
    """Save a job's last step and delete its pods until it resumes."""
    from flexmarl.cli.commands.target import options
    from flexmarl.cli.connection import ask
    from flexmarl.cli.jobs import suspend

    where = ask(suspend(name, namespace, context, True))
    say(
        f"marljob {name} is being suspended; its state stays. "
        f"Go on with: flexmarl resume {name} {options(where, context)}"
    )
