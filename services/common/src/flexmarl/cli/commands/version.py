"""`flexmarl version`."""

import platform

from flexmarl.cli.console import say


def command() -> None:
    """Say which versions of FlexMARL and Python these are."""
    from importlib.metadata import version

    say(f"flexmarl {version('flexmarl')}, Python {platform.python_version()}")
