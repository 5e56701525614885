"""What every command prints through: the terminal, and the errors that end a command in words."""

from __future__ import annotations

from typing import NoReturn

import typer

OK, FAILED, INVALID, INTERRUPTED = 0, 1, 2, 130

_CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), "�")
del _CONTROLS[ord("\n")]
_CONTROLS[ord("\t")] = "    "


class CommandError(Exception):
    """A command cannot do what it was asked; the text says why and what to do."""

    def __init__(self, text: str, exit_code: int = FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def say(text: str = "") -> None:
    """A line on stdout."""
    typer.echo(printable(text))


def warn(text: str) -> None:
    """A line on stderr."""
    typer.echo(printable(text), err=True)


def leave(exit_code: int) -> NoReturn:
    raise typer.Exit(exit_code)


def printable(text: str) -> str:
    """`text` without what would steer a terminal: models and files may hold anything."""
    return text.translate(_CONTROLS).encode("utf-8", "replace").decode()
