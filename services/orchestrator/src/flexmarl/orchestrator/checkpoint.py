"""Checkpoints: a manifest, written last, that names every policy's state of one step.

The trainers write the states; here is the manifest, what makes it valid, and which are kept.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexmarl.contracts.job import MARLJob
from flexmarl.data.tasks import order_seed
from flexmarl.orchestrator.rundir import replace
from flexmarl.runtime.errors import InvalidJobError

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
    job_uid: str

    def policy(self, name: str) -> str:
        return str(self.directory / name)


def root_of(job: MARLJob, base_dir: Path, run_dir: Path) -> Path:
    """Where the job's checkpoints go, absolute."""
    uri = job.spec.checkpoint.uri
    root = run_dir / "checkpoints" if uri is None else base_dir / uri.removeprefix("file://")
    return root.absolute()


def directory_of(root: Path, step: int) -> Path:
    return root / f"{PREFIX}{step:08d}"


def cursor(job: MARLJob, records: int, step: int) -> dict[str, Any]:
    """Where in its tasks the job stands: from this any restart derives the same sequence."""
    data, batch = job.spec.data, job.spec.batch
    position = step * batch.tasks_per_step
    return {
        "position": position,
        "epoch": position // records,
        "records": records,
        "tasks_per_step": batch.tasks_per_step,
        "group_size": batch.group_size,
        "shuffle": data.shuffle,
        "order_seed": order_seed(data, job.spec.seed),
        "seed": job.spec.seed,
    }


def begin(directory: Path) -> None:
    """Make room for a checkpoint; one that lies there is no longer complete from now on."""
    (directory / MANIFEST).unlink(missing_ok=True)
    directory.mkdir(parents=True, exist_ok=True)


def finish(
    directory: Path,
    step: int,
    incarnation: int,
    job_uid: str,
    policies: Mapping[str, Saved],
    cursor: Mapping[str, Any],
) -> Checkpoint:
    """Write the manifest; the checkpoint is complete."""
    manifest = {
        "step": step,
        "incarnation": incarnation,
        "job_uid": job_uid,
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
    }
    replace(directory / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    return Checkpoint(directory, step, job_uid)


def read(directory: Path, job: MARLJob, records: int) -> Checkpoint:
    """The checkpoint in `directory`, fit for this job.

    InvalidJobError: it is incomplete, or would not continue the job's own sequence of tasks.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise InvalidJobError(f"{directory} holds no complete checkpoint: {MANIFEST} is missing")
    try:
        manifest = json.loads(path.read_text())
        step, policies, found = manifest["step"], manifest["policies"], manifest["cursor"]
        uid = manifest["job_uid"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidJobError(f"{path} is damaged: {error}") from None
    if missing := [name for name in job.spec.trained_policies if name not in policies]:
        raise InvalidJobError(
            f"{path} has no policy {', '.join(missing)}; it has {', '.join(policies)}"
        )
    for name in job.spec.trained_policies:
        for file in policies[name]["files"]:
            part = directory / name / file["path"]
            if not part.is_file() or part.stat().st_size != file["bytes"]:
                raise InvalidJobError(
                    f"{part} is not the file of {file['bytes']} bytes that was saved"
                )
    wanted = cursor(job, records, step)
    if wanted != found:
        changed = [
            f"{key} was {found.get(key)!r} and is {value!r}"
            for key, value in wanted.items()
            if found.get(key) != value
        ]
        raise InvalidJobError(f"{path} belongs to another sequence of tasks: {'; '.join(changed)}")
    return Checkpoint(directory.absolute(), step, uid)


def complete_ones(root: Path, job_uid: str | None = None) -> list[tuple[int, Path]]:
    """(step, directory) of the complete checkpoints below `root`, oldest first.

    With `job_uid`, only those that this submission wrote.
    """
    found = []
    for path in root.glob(f"{PREFIX}*/{MANIFEST}"):
        manifest = json.loads(path.read_text())
        if job_uid is None or manifest.get("job_uid") == job_uid:
            found.append((int(manifest["step"]), path.parent))
    return sorted(found)


def prune(root: Path, keep: int, job_uid: str) -> list[Path]:
    """Delete all but the last `keep` checkpoints of this submission; what went."""
    gone = [directory for _, directory in complete_ones(root, job_uid)[:-keep]]
    for directory in gone:
        (directory / MANIFEST).unlink()
        shutil.rmtree(directory)
    return gone
