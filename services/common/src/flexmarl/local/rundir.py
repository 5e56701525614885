"""What the supervisor keeps in a run's directory: its lock, its submissions, how it failed."""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flexmarl.contracts.job import MARLJob
from flexmarl.runtime.errors import JobFailedError
from flexmarl.runtime.files import replace

LOCK, SUBMISSIONS, PROGRESS = ".lock", "submissions", "progress.json"
COMPLETE = "Complete"
FINAL_PHASES = (COMPLETE, "Failed")


class RunLock:
    """One supervisor per run directory; the kernel lets go of it when the process ends."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / LOCK
        while True:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(self._fd, 32).decode().strip()
                os.close(self._fd)
                raise JobFailedError(
                    f"another `flexmarl run` (process {holder or 'unknown'}) works on {run_dir}; "
                    "wait for it or stop it"
                ) from None
            if self._still_named():
                break
            os.close(self._fd)  # its last holder removed it meanwhile
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"{os.getpid()}\n".encode())

    def _still_named(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


def add_submission(run_dir: Path, job_uid: str) -> list[str]:
    """Note `job_uid` as one that worked on this run; those before it."""
    path = run_dir / SUBMISSIONS
    before = path.read_text().split() if path.exists() else []
    with path.open("a") as file:
        file.write(f"{job_uid}\n")
    return before


def last_checkpoint(
    job: MARLJob, base_dir: Path, run_dir: Path, submissions: list[str]
) -> Path | None:
    """The newest complete checkpoint that a submission to this run wrote."""
    from flexmarl.orchestrator.checkpoint import complete_ones

    uri = job.spec.checkpoint.uri
    root = run_dir / "checkpoints" if uri is None else base_dir / uri.removeprefix("file://")
    found = complete_ones(root, submissions)
    return found[-1].absolute() if found else None


def reopen(run_dir: Path) -> None:
    """Take back that the run has ended: a resumed one goes on."""
    progress = _progress(run_dir)
    if progress.get("phase") in FINAL_PHASES:
        _write(run_dir, progress | {"phase": "Starting", "message": ""})


def says_complete(run_dir: Path) -> bool:
    """Whether the orchestrator has said so."""
    return _progress(run_dir).get("phase") == COMPLETE


def note_failure(run_dir: Path, message: str) -> None:
    """Say in progress.json that the job failed, unless the orchestrator has said how it ended."""
    progress = _progress(run_dir)
    if progress.get("phase") not in FINAL_PHASES:
        _write(run_dir, progress | {"phase": "Failed", "message": message})


def _progress(run_dir: Path) -> dict[str, Any]:
    path = run_dir / PROGRESS
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _write(run_dir: Path, progress: Mapping[str, Any]) -> None:
    replace(run_dir / PROGRESS, json.dumps(progress), durable=False)
