"""Reads a run directory, finished or being written: progress, metrics, evaluations, episodes.

Files are polled; a half-written last line waits for its rest, a damaged line is counted and passed
over, a file that was replaced (a resumed run forgets what it plays again) is read anew.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

Line = dict[str, Any]
FINISHED = ("Complete", "Failed")


@dataclass(slots=True)
class JsonLines:
    """The objects of a growing JSON lines file."""

    path: Path
    lines: list[Line] = field(default_factory=list)
    damaged: int = 0
    _file_id: int = 0
    _offset: int = 0

    def refresh(self) -> bool:
        """Read what is new; False when nothing is."""
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._file_id or stat.st_size < self._offset:
                    self.lines, self.damaged = [], 0
                    self._file_id, self._offset = stat.st_ino, 0
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return False
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for text in whole.splitlines():
            if text.strip():
                value = parse_object(text)
                if value is None:
                    self.damaged += 1
                else:
                    self.lines.append(value)
        return bool(whole)


class Progress(NamedTuple):
    """What the orchestrator said last."""

    phase: str = "Starting"
    step: int = 0
    steps: int = 0
    groups_done: int = 0
    groups_total: int = 0
    time: float = 0.0
    message: str = ""


class RunData:
    """Everything known about the run in `root`; `refresh` brings it up to date."""

    def __init__(self, root: Path, *, copied: bool = False) -> None:
        self.root, self._copied = root, copied
        self.progress = Progress()
        self.summary: Line | None = None
        self._metrics = JsonLines(root / "metrics.jsonl")
        self._evals = JsonLines(root / "evals.jsonl")
        self._episodes = JsonLines(root / "episodes.jsonl")
        self.notes: list[str] = []
        """Files that could not be read, in words."""

    @property
    def name(self) -> str:
        return self.root.resolve().name

    @property
    def metrics(self) -> list[Line]:
        """One per finished step, in order."""
        return _by_step(self._metrics.lines)

    @property
    def evals(self) -> list[Line]:
        return _by_step(self._evals.lines)

    @property
    def episodes(self) -> list[Line]:
        """Read only by `refresh(episodes=True)`."""
        return self._episodes.lines

    @property
    def agents(self) -> list[str]:
        """Those of any step or evaluation, in their first order."""
        return _names([*self._metrics.lines, *self._evals.lines], "agents")

    @property
    def policies(self) -> list[str]:
        return _names(self._metrics.lines, "policies")

    @property
    def finished(self) -> bool:
        return self.progress.phase in FINISHED

    @property
    def phase(self) -> str:
        """The phase, or `Stopped` when nobody works on an unfinished run."""
        known = self.finished or self._copied or is_locked(self.root)
        return self.progress.phase if known else "Stopped"

    @property
    def seconds(self) -> float | None:
        """As the summary says, else what all steps and evaluations took."""
        told, lines = number(self.summary, "seconds"), self.metrics
        if told is not None:
            return told
        spent = [number(line, "seconds", "step") for line in lines]
        spent += [number(line, "seconds") for line in self.evals]
        return sum(one for one in spent if one is not None) if lines else None

    def refresh(self, *, episodes: bool = False) -> None:
        self.notes = []
        value = self._object("progress.json")
        if value is not None:
            self.progress = _progress(value)
        self.summary = self._object("summary.json")
        for file in (self._metrics, self._evals, *([self._episodes] if episodes else ())):
            file.refresh()
            if file.damaged:
                lines = "1 damaged line" if file.damaged == 1 else f"{file.damaged} damaged lines"
                self.notes.append(f"{file.path.name}: {lines} left out")

    def _object(self, name: str) -> Line | None:
        try:
            text = (self.root / name).read_bytes()
        except FileNotFoundError:
            return None
        value = parse_object(text)
        if value is None:
            self.notes.append(f"{name} is damaged: not a JSON object")
        return value


def number(line: Any, *keys: str) -> float | None:
    """The finite number at `keys`, None when there is none."""
    for key in keys:
        line = line.get(key) if isinstance(line, dict) else None
    if isinstance(line, bool) or not isinstance(line, int | float):
        return None
    return line if abs(line) < float("inf") else None  # false for NaN, too


def mapping(line: Any, key: str) -> Line:
    """The mapping at `key`, empty when there is none."""
    value = line.get(key) if isinstance(line, dict) else None
    return value if isinstance(value, dict) else {}


def parse_object(text: bytes) -> Line | None:
    """The JSON object in `text`; None when it holds none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_locked(root: Path) -> bool:
    """Whether a `flexmarl run` works on the run in `root`."""
    try:
        handle = os.open(root / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _progress(value: Line) -> Progress:
    def whole(key: str) -> int:
        return int(number(value, key) or 0)

    return Progress(
        phase=str(value.get("phase", "Starting")),
        step=whole("step"),
        steps=whole("steps"),
        groups_done=whole("groups_done"),
        groups_total=whole("groups_total"),
        time=number(value, "time") or 0.0,
        message=str(value.get("message") or ""),
    )


def _by_step(lines: list[Line]) -> list[Line]:
    """In order of steps; a step that was played again counts once, as it was last."""
    steps = {int(step): line for line in lines if (step := number(line, "step")) is not None}
    return [steps[step] for step in sorted(steps)]


def _names(lines: list[Line], key: str) -> list[str]:
    found: dict[str, None] = {}
    for line in lines:
        if isinstance(line.get(key), dict):
            found.update(dict.fromkeys(line[key]))
    return list(found)
