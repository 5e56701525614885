"""What may befall the processes of a job: each is done at once, to whoever plays the role now."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from .running import Job, wait_until

NAMES = {
    "orchestrator": "orchestrator",
    "worker": "rollout-worker",
    "engine": "engine",
    "trainer": "trainer",
    "experience": "experience",
    "store": "valkey",
    "weights": "weights",
}
"""Role -> how the names of its processes begin, as the kernel knows them."""
POD = ("trainer", "engine", "weights")
"""Who shares a pod's memory; on one machine all of a job's are in one."""
SHM = Path("/dev/shm")

Blow: TypeAlias = Callable[[Job, random.Random], None]


@dataclass(frozen=True)
class Strike:
    name: str
    blow: Blow


def processes_of(job: Job, *roles: str) -> list[int]:
    """Pids of the job's own processes in these roles, not of what those have started."""
    assert job.process is not None
    if job.ended():
        return []
    names = tuple(NAMES[role] for role in roles)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                name, _, fields = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                state, parent = fields.split()[:2]
                if int(parent) == job.process.pid and name.startswith(names) and state != "Z":
                    found.append(int(entry.name))
    return sorted(found)


def one_of(job: Job, chance: random.Random, role: str) -> int:
    """The pid of one, as soon as there is one."""
    wait_until(lambda: processes_of(job, role) or job.ended())
    return chance.choice(processes_of(job, role) or [0])


def send(pid: int, number: signal.Signals) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """In the block they stand still; then they are killed, without having seen what was done."""
    for pid in pids:
        send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            send(pid, signal.SIGKILL)


def killing(role: str) -> Strike:
    def blow(job: Job, chance: random.Random) -> None:
        send(one_of(job, chance, role), signal.SIGKILL)

    return Strike(role, blow)


def _lose_pod(job: Job, chance: random.Random) -> None:
    with stopped(processes_of(job, *POD)):
        for path in SHM.glob(f"flexmarl-{job.submissions()[-1]}.*"):
            path.unlink(missing_ok=True)


def _log_of_store(job: Job) -> Path | None:
    """The file that it writes to, as soon as there is one; None: the job has ended."""

    def logs() -> list[Path]:
        return list(job.temporary.glob("flexmarl-*/appendonlydir/*.incr.aof"))

    wait_until(lambda: logs() or job.ended())
    return max(logs(), default=None)


def _lose_store(job: Job, chance: random.Random) -> None:
    log = _log_of_store(job)
    with contextlib.suppress(FileNotFoundError), stopped([one_of(job, chance, "store")]):
        if log is not None:
            shutil.rmtree(log.parent)


def _lose_second(job: Job, chance: random.Random) -> None:
    """What a server writes once a second is not on the disk of a machine that crashes."""
    log = _log_of_store(job)
    with contextlib.suppress(FileNotFoundError):
        size = log.stat().st_size if log is not None else 0
        time.sleep(chance.random())
        with stopped([one_of(job, chance, "store")]):
            if log is not None:
                os.truncate(log, min(size, log.stat().st_size))


def _freeze(job: Job, chance: random.Random) -> None:
    """Nobody hears of it, and connections stay open that nobody answers."""
    pid = one_of(job, chance, chance.choice(sorted(NAMES)))
    send(pid, signal.SIGSTOP)
    time.sleep(chance.uniform(0.5, 4))
    send(pid, signal.SIGCONT)


KILLS = [killing(role) for role in NAMES]
POD_LOST = Strike("pod lost", _lose_pod)
STORE_LOST = Strike("store's memory lost", _lose_store)
SECOND_LOST = Strike("store's last second lost", _lose_second)
FROZEN = Strike("frozen for a while", _freeze)
OTHERS = [POD_LOST, STORE_LOST, SECOND_LOST, FROZEN]
