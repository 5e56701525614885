"""The files of a run that tell what happened: progress, metrics, evaluations, episodes, summary.

They are read by the command line while they are written: lines are appended whole, other files
replaced atomically. All calls block on the disk; the event loop calls them in a thread.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from flexmarl.runtime.files import replace, sweep, sync

Line = dict[str, Any]


class Phase(StrEnum):
    STARTING = "Starting"
    RUNNING = "Running"
    EVALUATING = "Evaluating"
    COMPLETE = "Complete"
    FAILED = "Failed"


def lines(path: Path) -> list[Line]:
    """The objects in a JSON lines file, without a torn last line; none if there is no file."""
    if not path.exists():
        return []
    found = []
    for text in path.read_text().splitlines(keepends=True):
        if text.endswith("\n"):
            found.append(json.loads(text))
    return found


def _place(line: Line) -> tuple[int | None, ...]:
    """What there is one line of."""
    return tuple(line.get(key) for key in ("step", "index", "episode"))


class RunDir:
    """Writes below `root`; one process at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.metrics = root / "metrics.jsonl"
        self.evals = root / "evals.jsonl"
        self.episodes = root / "episodes.jsonl"
        self._incarnation = root / "incarnation"
        self._progress = root / "progress.json"
        self._serial, self._lock = 0, threading.Lock()
        self._own: int | None = None

    def progress(self, serial: int, value: Mapping[str, Any]) -> None:
        """Replace `progress.json`, unless a call with a higher `serial`, or a later incarnation,
        has done so."""
        with self._lock:  # a thread whose caller was cancelled still runs
            if serial <= self._serial or (self._own is not None and self._own < self.incarnation()):
                return
            self._serial = serial
            # Several a second: not worth an fsync.
            replace(self._progress, json.dumps(value) + "\n", durable=False)

    def incarnation(self) -> int:
        """The latest that wrote here, whatever the store has forgotten; 0: none."""
        return int(self._incarnation.read_text()) if self._incarnation.exists() else 0

    def begin(self, incarnation: int) -> None:
        """From now on this one writes here."""
        for path in (self._progress, self._incarnation, self.root / "summary.json"):
            sweep(path)
        self._own = incarnation
        replace(self._incarnation, f"{incarnation}\n")

    def append(
        self, path: Path, values: Iterable[Mapping[str, Any]], *, durable: bool = True
    ) -> None:
        """Add whole lines at the end of one of the files above.

        `durable`: they survive a power cut, once this has returned.
        """
        text = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
        new = not path.exists()
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if new and durable:
            sync(path.parent)

    def rewind(self, step: int, *, evaluated: bool, trained: bool = False) -> None:
        """Forget what was written of `step` and later, torn lines, episodes of a step without its
        metrics, and what was written twice: by an orchestrator that did not know yet that another
        had taken over.

        `evaluated`: keep the evaluation at `step` itself, which was made before it began.
        `trained`: keep what says that `step` itself was trained.
        """
        for path in (self.metrics, self.evals, self.episodes):
            if not path.exists():
                continue
            last = step if (evaluated if path is self.evals else trained) else step - 1
            found = sorted(lines(path), key=lambda line: int(line["step"]))
            kept = {_place(line): line for line in found if line["step"] <= last}
            if path is self.episodes:
                told = {line["step"] for line in lines(self.metrics)}
                kept = {place: line for place, line in kept.items() if line["step"] in told}
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept.values())
            replace(path, text)

    def summary(self, value: Mapping[str, Any]) -> None:
        replace(self.root / "summary.json", json.dumps(value, indent=2) + "\n")
