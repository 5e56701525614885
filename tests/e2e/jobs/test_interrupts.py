"""A run is looked at while it goes on, interrupted at any moment, and resumed; nothing is left."""

import json
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
    spec = team() | {"steps": 500, "checkpoint": {"everySteps": 1}}
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


def looked_at(job: Job) -> None:
    """What a user may do while it runs."""
    run = str(job.run_dir)
    status = json.loads(job.call("status", run, "--json").stdout)
    assert (status["phase"], status["progress"]["steps"]) == ("Running", 500)
    assert set(status["last_step"]["agents"]) == {"solver", "verifier"}
    assert status["summary"] is None
    assert "Running" in job.call("status", run).stdout
    episodes = job.call("episodes", run, "--first", "1")
    assert episodes.stdout.startswith("step 1"), episodes.stderr
    for options in ((), ("--resume",), ("--replace",)):
        second = job.call("run", str(job.file), "--run-dir", run, *options)
        assert second.returncode == 1
        assert f"Another `flexmarl run` works on {run}" in second.stderr
    exported = job.call("export", run, "solver", str(job.directory / "early"))
    assert exported.returncode == 0, exported.stderr
    assert (job.directory / "early" / "model.safetensors").exists()


def test_while_it_runs_and_at_the_end_then_it_is_resumed(job: Job) -> None:
    job.start(*(["--resume"] if (job.run_dir / "job.yaml").exists() else []))
    wait_until(lambda: job.steps() > 0 and list(job.run_dir.glob("checkpoints/*/manifest.json")))
    looked_at(job)
    ctrl_c(job)
    code, output = job.finish()
    assert code == INTERRUPTED, output + job.logs()
    assert output.splitlines()[-1].startswith("Interrupted. Go on with: flexmarl run ")
    stopped_without_a_trace(job)
    assert "Stopped" in job.call("status", str(job.run_dir)).stdout

    steps = job.steps() + 1
    resume = ("--resume", "--set", f"spec.steps={steps}")
    job.start(*resume)
    wait_until(lambda: job.progress()["phase"] == "Complete")
    terminate(job)  # too late: the orchestrator has said that all is done
    code, output = job.finish()
    assert code == 0, output + job.logs()
    assert output.splitlines()[-1] == f"Report: {job.run_dir}/report.html"
    assert (job.run_dir / "report.html").exists()
    assert [line["step"] for line in job.lines()] == list(range(steps))
    assert job.summary()["steps"] == steps
    stopped_without_a_trace(job)
