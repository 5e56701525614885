"""Killed wholesale at any moment and resumed, a job trains what it would have trained."""

import random
import time
from collections.abc import Callable

import pytest

from .conftest import MakeJob
from .running import Job, wait_until
from .specs import STEPS, team

pytestmark = pytest.mark.e2e
CHANCE = random.Random(11)


def just_started(job: Job) -> bool:
    return job.pid_of("experience") is not None


def in_the_middle_of_a_step(job: Job) -> bool:
    """A step takes half a second, of which turns are all but the end; a checkpoint lies behind."""
    return job.steps() >= 5


def around_a_checkpoint(job: Job) -> bool:
    """The trainers write it; its manifest comes a moment later."""
    return (job.run_dir / "checkpoints" / "step-00000008").exists()


def kill_when(job: Job, moment: Callable[[Job], bool], *options: str) -> None:
    run = job.start(*options)
    wait_until(lambda: moment(job) or run.poll() is not None)
    time.sleep(CHANCE.random() * 0.3)
    run.kill()
    code, output = job.finish()
    assert code < 0, output + job.logs()
    wait_until(lambda: job.left() == [], 10)


def test_killed_at_several_moments_and_resumed_it_trains_the_very_same(
    reference: Job, make_job: MakeJob
) -> None:
    job = make_job(team())
    kill_when(job, just_started)
    kill_when(job, in_the_middle_of_a_step, "--resume")
    kill_when(job, around_a_checkpoint, "--resume")
    output = job.complete("--resume")
    assert "resuming from" in output
    assert [line["step"] for line in job.lines()] == list(range(STEPS))
    assert job.tasks() == reference.tasks()
    for mine, theirs in zip(job.rewards(), reference.rewards(), strict=True):
        assert mine == pytest.approx(theirs)  # means over groups in the order of their arrival
    assert job.checksums() == reference.checksums()
    assert [line["step"] for line in job.lines("evals.jsonl")] == [0, 6, STEPS]
    for name, score in job.lines("evals.jsonl")[-1]["agents"].items():
        assert score == pytest.approx(reference.lines("evals.jsonl")[-1]["agents"][name])
    assert job.left() == []
