"""Each kind of process killed with -9 at a random moment: the job trains the very same."""

import random
import time
from concurrent.futures import Future
from functools import partial

import pytest

from .conftest import MakeJob
from .running import Job, wait_until
from .specs import STEPS, team

pytestmark = pytest.mark.e2e
VICTIMS = [
    "orchestrator",
    "rollout-worker-0",
    "engine-solver-0",
    "trainer-0",
    "experience",
    "store",
    "weights",
]


def reached_or_ended(job: Job, steps: int) -> bool:
    return job.steps() >= steps or (job.process is not None and job.process.poll() is not None)


def test_whatever_dies_the_job_trains_the_very_same(
    starting_reference: "Future[Job]", make_job: MakeJob
) -> None:
    chance = random.Random(5)
    victims = chance.sample(VICTIMS, len(VICTIMS))
    job = make_job(team())
    job.start()
    for number, victim in enumerate(victims):
        wait_until(partial(reached_or_ended, job, number + 1))
        time.sleep(chance.random() * 0.6)
        job.kill(victim)
    code, output = job.finish()
    assert code == 0, f"{victims}\n{output}{job.logs()}"
    for victim in victims:
        assert f"{victim} ended (killed by SIGKILL)" in output
    assert job.progress()["phase"] == "Complete"
    reference = starting_reference.result()
    assert [line["step"] for line in job.lines()] == list(range(STEPS))
    assert job.tasks() == reference.tasks()
    assert job.checksums() == reference.checksums()
    assert job.summary()["steps"] == STEPS
    assert job.left() == []
