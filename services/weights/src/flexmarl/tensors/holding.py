"""Who still needs a job's shared memory: a lock per job, and removal when nobody holds it.

Every process that writes or reads a set holds a shared flock on `flexmarl-{job uid}.job.lock`; the
kernel drops it when the process ends, however it ends. Whoever gets the lock exclusively knows that
no process of the job lives, so jobs on one machine never remove each other's sets.
"""

import fcntl
import os
import re
from pathlib import Path

from flexmarl.runtime.errors import InvalidRequestError

PREFIX = "flexmarl-"
LOCK_SUFFIX = ".job.lock"  # policy names have no dots, so no set is called so
_UID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_]*")
_SET = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_]*)\.[A-Za-z0-9][-A-Za-z0-9_]*")


def set_name(job_uid: str, policy: str) -> str:
    return f"{job_uid}.{policy}"


def set_path(shm_dir: Path, name: str) -> Path:
    """Where the set `name` lies; InvalidRequestError when it is no set name (a path, say)."""
    _uid_of(name)
    return shm_dir / f"{PREFIX}{name}"


def _uid_of(name: str) -> str:
    match = _SET.fullmatch(name)
    if match is None:
        raise InvalidRequestError(f"{name!r} is no name of a tensor set: JOB_UID.POLICY")
    return match[1]


def set_names(shm_dir: Path, job_uid: str) -> list[str]:
    names = (path.name.removeprefix(PREFIX) for path in shm_dir.glob(f"{PREFIX}{job_uid}.*"))
    return sorted(name for name in names if _SET.fullmatch(name))


class Hold:
    """Keeps a job's sets from being removed by others until `release` or the process ends."""

    def __init__(self, shm_dir: Path, job_uid: str) -> None:
        if _UID.fullmatch(job_uid) is None:
            raise InvalidRequestError(f"job uid {job_uid!r}: letters, digits, - and _ only")
        path = shm_dir / f"{PREFIX}{job_uid}{LOCK_SUFFIX}"
        while True:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_SH)
            if still_named(self._fd, path):
                return
            os.close(self._fd)  # removed while we waited for it: take the new one

    @classmethod
    def of_set(cls, shm_dir: Path, name: str) -> "Hold":
        return cls(shm_dir, _uid_of(name))

    def release(self) -> None:
        """Let go. Calling it again does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def still_named(fd: int, path: Path) -> bool:
    """Whether `path` still names the file open as `fd`."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def remove_unheld(shm_dir: Path, job_uid: str) -> bool:
    """Remove all sets of a job unless a process holds them. True when none is left."""
    lock = shm_dir / f"{PREFIX}{job_uid}{LOCK_SUFFIX}"
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError:  # another user's job
        return False
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if still_named(fd, lock):
            for path in shm_dir.glob(f"{PREFIX}{job_uid}.*"):
                if path != lock:
                    path.unlink(missing_ok=True)
            lock.unlink()  # last: until here nobody else gets past it
        return True
    finally:
        os.close(fd)


def remove_leftovers(shm_dir: Path, keep: str = "") -> list[str]:
    """Remove the sets of every job but `keep` that no process holds; says which jobs' they were."""
    uids = {path.name.removeprefix(PREFIX).split(".")[0] for path in shm_dir.glob(f"{PREFIX}*.*")}
    return [
        uid for uid in sorted(uids - {keep}) if _UID.fullmatch(uid) and remove_unheld(shm_dir, uid)
    ]
