"""Tables and colours on stdout."""

from __future__ import annotations

from typing import Any, NoReturn

from rich.console import Console

WIDE = 10_000


class Terminal(Console):
    """Colours and broken lines on a terminal alone: a pipe gets lines as long as they are."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, **options)
        if not self.is_terminal:
            self.width = WIDE

    def on_broken_pipe(self) -> NoReturn:
        """As what every command does then, see `flexmarl.cli.app`."""
        self.quiet = True
        raise BrokenPipeError
