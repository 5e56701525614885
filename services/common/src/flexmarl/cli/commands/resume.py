"""`flexmarl resume NAME`: on a cluster."""

from __future__ import annotations

from flexmarl.cli.commands.arguments import ContextOption, NameArgument, NamespaceOption
from flexmarl.cli.console import say


def command(
    name: NameArgument, namespace: NamespaceOption = None, context: ContextOption = None
) -> None:
    """Let a suspended job go on from where it was saved."""
    from flexmarl.cli.commands.target import options
    from flexmarl.cli.connection import ask
    from flexmarl.cli.jobs import suspend

    where = ask(suspend(name, namespace, context, False))
    say(f"marljob {name} goes on. See how: flexmarl status {name} {options(where, context)}")
