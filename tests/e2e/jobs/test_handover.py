"""Processes that stood still while others took over and then go on: what they do counts for
nothing, the job trains the very same."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from .conftest import MakeJob
from .running import Job, wait_until
from .specs import TIRELESS, replicated, team
from .strikes import POD_LOST, one_of, processes_of, send
from .tormented import deviations, phase_of

pytestmark = pytest.mark.e2e
CHANCE = random.Random(8)


def enduring_team() -> dict[str, object]:
    spec = team()
    return spec | {"roles": dict.fromkeys(spec["roles"], TIRELESS)}


def in_the_middle_of_a_step(job: Job, steps: int) -> None:
    wait_until(lambda: job.steps() >= steps or job.ended())
    wait_until(lambda: phase_of(job) == "rollout" or job.ended())
    time.sleep(0.3)


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pid, signal.SIGCONT)


def said(job: Job, process: str, words: str) -> int:
    return (job.run_dir / "logs" / f"{process}.log").read_text().count(words)


def ends_the_same(job: Job, reference: Job) -> None:
    code, output = job.finish()
    assert code == 0, output + job.logs()
    assert deviations(job, reference) == []


def test_a_zombie_trainer_and_a_zombie_worker_count_for_nothing(
    starting_reference: "Future[Job]", make_job: MakeJob
) -> None:
    """Both hold groups of an incarnation and of epochs that are over, or soon will be, when they go
    on."""
    job = make_job(replicated(enduring_team()))
    job.start()
    in_the_middle_of_a_step(job, 2)
    with standing_still(one_of(job, CHANCE, "trainer")):
        send(one_of(job, CHANCE, "orchestrator"), signal.SIGKILL)
        wait_until(lambda: processes_of(job, "orchestrator"))
        time.sleep(3)  # it is there again, and waits
    in_the_middle_of_a_step(job, job.steps() + 1)
    with standing_still(one_of(job, CHANCE, "worker")):
        POD_LOST.blow(job, CHANCE)  # which always ends the incarnation
        wait_until(lambda: said(job, "orchestrator", "the job falls back"))
        time.sleep(1)
    ends_the_same(job, starting_reference.result())


def environment_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(entry.decode().split("=", 1) for entry in entries if entry)


def test_a_zombie_orchestrator_stops_and_the_files_tell_one_story(
    starting_reference: "Future[Job]", make_job: MakeJob
) -> None:
    job = make_job(enduring_team())
    job.start()
    in_the_middle_of_a_step(job, 3)
    first = one_of(job, CHANCE, "orchestrator")
    with standing_still(first):
        with (job.directory / "second.log").open("wb") as log:
            second = subprocess.Popen(
                [sys.executable, "-m", "flexmarl.cli", "serve", "orchestrator"],
                env=environment_of(first),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        steps = job.steps()
        wait_until(lambda: job.steps() >= steps + 3 or second.poll() is not None)
    # The first ends as replaced; its supervisor starts a third, which replaces the second. That one
    # would finish the job meanwhile on a slow machine.
    with standing_still(second.pid):
        wait_until(lambda: first not in processes_of(job, "orchestrator"))
        wait_until(lambda: said(job, "orchestrator", "taking over"))
    second.wait(60)
    assert second.returncode != 0, (job.directory / "second.log").read_text()
    assert said(job, "orchestrator", "has taken over")
    ends_the_same(job, starting_reference.result())
