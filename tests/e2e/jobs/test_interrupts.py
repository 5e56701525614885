"""Ctrl-C and SIGTERM at any moment: everything stops, nothing is left, and it can be resumed."""

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from .conftest import MakeJob
from .running import Job, seen, wait_until
from .specs import team

pytestmark = pytest.mark.e2e
STEPS = 2
INTERRUPTED = 130


def ctrl_c(job: Job) -> None:
    """To the whole process group, as a terminal does."""
    assert job.process is not None
    os.killpg(job.process.pid, signal.SIGINT)


def terminate(job: Job) -> None:
    """To the supervisor alone."""
    assert job.process is not None
    job.process.terminate()


def stopped_without_a_trace(job: Job) -> None:
    assert seen(lambda: job.left() == [], 3), job.left()
    assert not job.is_locked()


@pytest.fixture(scope="module")
def job(make_job: MakeJob) -> Job:
    spec = team() | {"steps": STEPS, "checkpoint": {"everySteps": 1}}
    del spec["eval"]
    return make_job(spec)


@pytest.mark.parametrize("stop", [ctrl_c, terminate])
def test_before_and_while_processes_start(job: Job, stop: Callable[[Job], None]) -> None:
    chance = random.Random(stop.__name__)
    for moment in (0.2, 1 + chance.random(), 3.0):
        started = len(job.submissions())
        job.start(*(["--resume"] if (job.run_dir / "job.yaml").exists() else []))
        time.sleep(moment)
        stop(job)
        code, output = job.finish()
        # SIGTERM is what it is to any program as long as there is nothing to stop.
        idle = stop is terminate and len(job.submissions()) == started
        assert code == (-signal.SIGTERM if idle else INTERRUPTED), (moment, code, output)
        assert "Traceback" not in output
        stopped_without_a_trace(job)


def test_in_the_first_step_and_at_the_end_then_it_is_resumed(job: Job) -> None:
    job.start(*(["--resume"] if (job.run_dir / "job.yaml").exists() else []))
    wait_until(lambda: job.progress().get("phase") == "Running")
    ctrl_c(job)
    code, output = job.finish()
    assert code == INTERRUPTED, output + job.logs()
    assert output.splitlines()[-1].startswith("Interrupted. Go on with: flexmarl run ")
    assert job.steps() < STEPS
    stopped_without_a_trace(job)

    job.start("--resume")
    wait_until(lambda: job.steps() == STEPS)
    terminate(job)  # which may come before or after the orchestrator has said that all is done
    code, output = job.finish()
    assert code in (0, INTERRUPTED), output + job.logs()
    stopped_without_a_trace(job)

    job.complete("--resume")
    assert [line["step"] for line in job.lines()] == list(range(STEPS))
    assert job.summary()["steps"] == STEPS
    stopped_without_a_trace(job)
