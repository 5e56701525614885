"""May this job be trained in that run directory? And the job file that a run keeps."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flexmarl.cli.console import INVALID, CommandError
from flexmarl.cli.find import is_run
from flexmarl.cli.rundata import RunData, is_locked
from flexmarl.contracts.documents import dump, parse
from flexmarl.contracts.problems import FieldPath, format_path
from flexmarl.contracts.reading import BASE_DIR, JobFile
from flexmarl.runtime.files import replace

MAY_CHANGE: tuple[FieldPath, ...] = (
    ("metadata", "annotations"),
    ("metadata", "labels"),
    ("spec", "steps"),
    ("spec", "checkpoint"),
    ("spec", "roles"),
    ("spec", "store"),
    ("spec", "weightSync"),
)
"""What a resumed run may have otherwise: none of it changes what is trained."""


def prepare(root: Path, file: JobFile, *, resume: bool, replace: bool) -> bool:
    """Make `root` ready; False when a resumed run is complete. CommandError: it may not be used."""
    if file.base_dir.resolve().is_relative_to(root.resolve()):
        raise CommandError(
            f"the job file or its data lie in {root}; choose another --run-dir", INVALID
        )
    if is_locked(root):
        raise CommandError(f"Another `flexmarl run` works on {root}; wait for it or stop it")
    if not is_run(root):
        _claim(root, resume=resume)
        return True
    data = RunData(root)
    data.refresh()
    if replace:
        shutil.rmtree(root)
        root.mkdir(parents=True)
        return True
    if not resume:
        raise CommandError(_refusal(data), INVALID)
    changed = [format_path(path) for path in changes(_kept(root), file.document)]
    if changed:
        raise CommandError(
            f"{root} was started with another job: {', '.join(changed)} changed. "
            "Undo that, or start over with --replace",
            INVALID,
        )
    steps = data.progress.steps
    if file.job.spec.steps < data.progress.step:
        raise CommandError(
            f"{root} has finished {data.progress.step} steps already, "
            f"spec.steps is {file.job.spec.steps}",
            INVALID,
        )
    return data.progress.phase != "Complete" or file.job.spec.steps > steps


def keep_job(root: Path, file: JobFile) -> None:
    """Write the job with its overrides as job.yaml of the run, fit to be run again."""
    document = copy.deepcopy(file.document)
    annotations = document["metadata"].setdefault("annotations", {})
    annotations[BASE_DIR] = str(file.base_dir)
    replace(root / "job.yaml", dump(document))


def changes(old: Any, new: Any, path: FieldPath = ()) -> Iterator[FieldPath]:
    """The fields that differ between two documents and decide what is trained."""
    if path in MAY_CHANGE or old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from changes(old.get(key), new.get(key), (*path, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from changes(one, other, (*path, index))
    else:
        yield path


def _claim(root: Path, *, resume: bool) -> None:
    if resume:
        raise CommandError(f"{root} holds no run to resume; start it without --resume", INVALID)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise CommandError(f"{root} exists and is no run; choose another --run-dir", INVALID)
    root.mkdir(parents=True, exist_ok=True)


def _refusal(data: RunData) -> str:
    progress = data.progress
    if progress.phase == "Complete":
        return (
            f"{data.root} holds a finished run. --replace deletes it and starts over; "
            "--run-dir DIR keeps it and trains elsewhere"
        )
    return (
        f"{data.root} holds an unfinished run ({progress.step} of {progress.steps or '?'} steps). "
        "--resume goes on with it; --replace deletes it and starts over"
    )


def _kept(root: Path) -> Any:
    try:
        return parse((root / "job.yaml").read_text(encoding="utf-8")).data
    except (OSError, UnicodeDecodeError):
        raise CommandError(
            f"{root} has lost its job.yaml and cannot be resumed; --replace starts over"
        ) from None
