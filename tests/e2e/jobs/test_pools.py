"""Four policies on two engines: the same as with an engine each, whatever happens."""

from __future__ import annotations

import random

import pytest

from .conftest import MakeJob
from .running import Job, wait_until
from .specs import QUICK, SCRIPTED, debaters, pooled
from .strikes import killing

pytestmark = pytest.mark.e2e

STEPS = 3


@pytest.fixture(scope="module")
def alone(make_job: MakeJob) -> Job:
    """Each policy has an engine of its own."""
    done = make_job(debaters(SCRIPTED, STEPS))
    done.complete()
    return done


def test_two_engines_for_four_policies_train_what_four_do(make_job: MakeJob, alone: Job) -> None:
    """One of them is killed in the middle, twice, and a slot with it."""
    job = make_job(pooled(debaters(QUICK, STEPS), 2, slots=2))
    running = job.start()
    for number in (0, 1):
        wait_until(lambda: job.ended() or job.steps() > number)  # noqa: B023 - called at once
        assert running.poll() is None
        job.kill(f"engine-few-{number}")
        killing("trainer").blow(job, random.Random(number))
    code, output = job.finish()
    assert code == 0, output + job.logs()
    assert job.checksums() == alone.checksums()
    assert job.rewards() == alone.rewards()
    logs = {path.stem: path.read_text() for path in (job.run_dir / "logs").glob("*.log")}
    assert {name for name in logs if name.startswith("engine")} == {"engine-few-0", "engine-few-1"}
    assert "engine serves another policy" in logs["orchestrator"]
    assert job.left() == []


def test_one_engine_plays_them_all_in_turns(make_job: MakeJob, alone: Job) -> None:
    job = make_job(pooled(debaters(SCRIPTED, STEPS), 1))
    job.complete()
    assert job.checksums() == alone.checksums()
    assert job.rewards() == alone.rewards()
