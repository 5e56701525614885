"""Checkpoints: a manifest, written last, that names every policy's state of one step.

The trainers write the states; here is the manifest, what makes it valid, and which are kept. All of
it is made beside its place, so that one that lies there stays whole until the new one is.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flexmarl.runtime.errors import InvalidJobError
from flexmarl.runtime.files import mend, places_to_mend, put_in_place, replace, sync

MANIFEST = "manifest.json"
PREFIX = "step-"


@dataclass(frozen=True, slots=True)
class Saved:
    """What a trainer wrote of one policy."""

    version: int
    checksum: str
    files: tuple[str, ...]
    """Relative to the policy's directory."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    directory: Path
    step: int
    """Number of finished steps, and version of every policy."""
    lineage: tuple[str, ...]
    """Uids of the submissions that led to it, the writer's last."""
    draws: str = ""
    """Of partial rollouts: what had been drawn and not trained (`draws.Draws.dump`)."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """Of each policy's weights."""

    @property
    def staging(self) -> Path:
        """Where it is made."""
        return self.directory.with_name(f".{self.directory.name}.partial")

    def policy(self, name: str) -> str:
        return str(self.directory / name)


def checksums(saved: Mapping[str, Saved]) -> dict[str, str]:
    return {name: each.checksum for name, each in saved.items()}


def directory_of(root: Path, step: int) -> Path:
    return root / f"{PREFIX}{step:08d}"


def begin(checkpoint: Checkpoint) -> None:
    """Make room for a checkpoint. What an earlier attempt left is replaced, policy by policy."""
    checkpoint.staging.mkdir(parents=True, exist_ok=True)
    (checkpoint.staging / MANIFEST).unlink(missing_ok=True)


def finish(
    checkpoint: Checkpoint,
    policies: Mapping[str, Saved],
    cursor: Mapping[str, Any],
    *,
    incarnation: int,
) -> None:
    """Write the manifest, which makes the checkpoint complete, and put it in its place."""
    directory = checkpoint.staging
    manifest = {
        "step": checkpoint.step,
        "incarnation": incarnation,
        "lineage": checkpoint.lineage,
        "time": time.time(),
        "policies": {
            name: {
                "version": saved.version,
                "checksum": saved.checksum,
                "files": [
                    {"path": file, "bytes": (directory / name / file).stat().st_size}
                    for file in sorted(saved.files)
                ],
            }
            for name, saved in policies.items()
        },
        "cursor": dict(cursor),
        "draws": checkpoint.draws,
    }
    replace(directory / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    sync(directory)
    put_in_place(directory, checkpoint.directory)


def is_complete(directory: Path) -> bool:
    mend(directory)
    return (directory / MANIFEST).is_file()


def read(
    directory: Path, policies: Collection[str], cursor: Callable[[int], Mapping[str, Any]]
) -> Checkpoint:
    """The complete checkpoint in `directory`, with all of `policies`.

    InvalidJobError: it is incomplete, or `cursor(step)` says that the job would not continue the
    sequence of tasks that it stands in.
    """
    path = directory / MANIFEST
    if not is_complete(directory):
        raise InvalidJobError(f"{directory} holds no complete checkpoint: {MANIFEST} is missing")
    try:
        manifest = json.loads(path.read_text())
        step, saved, found = manifest["step"], manifest["policies"], manifest["cursor"]
        lineage, draws = tuple(manifest["lineage"]), manifest.get("draws", "")
        checksums = {name: each["checksum"] for name, each in saved.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidJobError(f"{path} is damaged: {error}") from None
    for name in policies:
        if name not in saved:
            raise InvalidJobError(f"{path} has no policy {name!r}; it has {', '.join(saved)}")
        for file in saved[name]["files"]:
            part = directory / name / file["path"]
            if not part.is_file() or part.stat().st_size != file["bytes"]:
                raise InvalidJobError(f"{part} is not the file of {file['bytes']} bytes it was")
    changed = [
        f"{key} was {found.get(key)!r} and is {value!r}"
        for key, value in cursor(step).items()
        if found.get(key) != value
    ]
    if changed:
        raise InvalidJobError(f"{path} belongs to another sequence of tasks: {'; '.join(changed)}")
    return Checkpoint(directory.absolute(), step, lineage, draws, checksums)


def complete_ones(root: Path, lineage: Sequence[str]) -> list[Path]:
    """Complete checkpoints below `root` that the submissions in `lineage` wrote, oldest first.

    By what led to what: clocks are set back, and those of two machines differ.
    """
    ages = {uid: age for age, uid in enumerate(lineage)}
    for place in places_to_mend(root):
        mend(place)
    found = []
    for path in root.glob(f"{PREFIX}*/{MANIFEST}"):
        manifest = json.loads(path.read_text())
        if (age := ages.get(manifest["lineage"][-1])) is not None:
            found.append((age, manifest["incarnation"], manifest["step"], path.parent))
    return [directory for *_, directory in sorted(found)]


def prune(root: Path, keep: int, lineage: Sequence[str]) -> list[Path]:
    """Delete all but the newest `keep` checkpoints of `lineage`; what went."""
    gone = complete_ones(root, lineage)[:-keep]
    for directory in gone:
        (directory / MANIFEST).unlink()
        shutil.rmtree(directory)
    return gone
