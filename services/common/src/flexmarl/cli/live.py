"""Follows a run while it goes on: a live table on a terminal, else one line per step."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, RenderableType
from rich.live import Live

from flexmarl.cli.console import say
from flexmarl.cli.rundata import RunData, number
from flexmarl.cli.view import eval_line, overview, step_line
from flexmarl.cli.words import duration

POLL_SECONDS = 0.5
SHOWN_EVENTS = 4


class Display(Protocol):
    """Use as `with`; what happens to processes is told to `event` from any thread."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def event(self, text: str) -> None: ...


def display(root: Path, *, plain: bool) -> Display:
    """The live table where stdout is a terminal that can show it, else plain lines."""
    console = Console()
    if plain or not console.is_terminal or console.is_dumb_terminal:
        return PlainLines(root)
    return LiveTable(root, console)


class LiveTable:
    def __init__(self, root: Path, console: Console) -> None:
        self._run, self._started = RunData(root), time.monotonic()
        self._events: deque[str] = deque(maxlen=SHOWN_EVENTS)
        self._live = Live(
            console=console, get_renderable=self._view, refresh_per_second=1 / POLL_SECONDS
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def event(self, text: str) -> None:
        self._events.append(text)

    def _view(self) -> RenderableType:
        self._run.refresh()
        elapsed = time.monotonic() - self._started
        phase = self._run.progress.phase
        return overview(self._run, phase=phase, elapsed=elapsed, events=list(self._events))


class PlainLines:
    def __init__(self, root: Path) -> None:
        self._run, self._started = RunData(root), time.monotonic()
        self._steps: set[int] = set()
        self._evals: set[int] = set()
        self._phase, self._lock = "", threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="display", daemon=True)

    def __enter__(self) -> Self:
        self._run.refresh()
        # What an earlier part of a resumed run did is no news.
        self._steps = {int(number(line, "step") or 0) for line in self._run.metrics}
        self._evals = {int(number(line, "step") or 0) for line in self._run.evals}
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.update()

    def event(self, text: str) -> None:
        with self._lock:
            say(f"[{duration(time.monotonic() - self._started)}] {text}")

    def update(self) -> None:
        """Print what is new since the last call."""
        run = self._run
        run.refresh()
        lines = [(_at(line), 1, line) for line in run.metrics]
        lines += [(_at(line) - 1, 2, line) for line in run.evals]  # version k comes after step k-1
        with self._lock:
            if run.progress.phase != self._phase and not run.finished:
                self._phase = run.progress.phase
                say(f"[{duration(time.monotonic() - self._started)}] {self._phase}")
            for _, kind, line in sorted(lines, key=lambda item: item[:2]):
                seen, step = (self._steps if kind == 1 else self._evals), _at(line)
                if step not in seen:
                    seen.add(step)
                    say(step_line(line, run.progress.steps) if kind == 1 else eval_line(line))

    def _follow(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self.update()


def _at(line: dict[str, object]) -> int:
    return int(number(line, "step") or 0)
