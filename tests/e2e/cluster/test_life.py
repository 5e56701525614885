"""A job's life: suspended and resumed, with more pods, deleted."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import pytest

from . import user
from .jobs import Job, once, same_as
from .kube import slack, until
from .specs import MODEL, STEPS, TASKS, team
from .stage import Stage

LONG = 20
"""Steps of a job to which much happens."""
GONE = 30.0
"""Seconds after which nothing may be left of a deleted job."""
WORKS = 30.0
"""Seconds after which a new engine plays."""


def test_a_job_is_suspended_and_goes_on_at_its_step(stage: Stage) -> None:
    job = stage.job()
    job.submit(team())
    job.trains(2)
    job.change(suspend=True)
    status = job.reaches("Suspended")
    assert job.pods() == []
    before = job.read()["metrics"]
    assert 2 <= status["step"] == len(before) < STEPS
    job.change(suspend=False)
    job.completes()
    once(job, STEPS, TASKS)
    same_as(job, stage.undisturbed())
    assert job.files["metrics"][: len(before)] == before, "steps were trained again"
    head, row = job.table()
    assert head == ["NAME", "PHASE", "REASON", "STEP", "AGE", "REWARD", "TOKENS/S", "RESTARTS"]
    assert {"team", "Complete", f"{STEPS}/{STEPS}", "0"} <= {*row}


@pytest.mark.long
def test_a_job_with_files_of_its_own_is_suspended_and_starts_again(stage: Stage) -> None:
    job, steps = stage.job("own"), round(LONG * slack())  # not over before a command has begun
    user.applied(job, steps, MODEL)
    job.trains(2)
    user.asks(job, "suspend", job.name)
    job.reaches("Suspended")
    assert job.pods() == []
    user.asks(job, "resume", job.name)
    job.completes()
    once(job, steps, user.TASKS)


def test_a_job_that_is_to_go_on_after_all_while_it_is_being_suspended_goes_on(
    stage: Stage,
) -> None:
    job = stage.job()
    job.submit(team())
    for number, pause in enumerate((0.0, 2.0)):  # its state is being saved; its pods go
        job.trains(2 * number + 1)
        job.change(suspend=True)
        job.until(lambda: job.status()["phase"].startswith("Suspend"), "it is being suspended")
        time.sleep(pause)
        job.change(suspend=False)
    job.completes()
    once(job, STEPS, TASKS)
    same_as(job, stage.undisturbed())


def test_a_pool_grows_by_itself_where_it_may_and_new_engines_work_within_seconds(
    stage: Stage,
) -> None:
    pool = {"name": "fast", "role": "engine", "min": 2, "max": 2}
    spec = team(LONG, pools=[pool], balancing={"turnsPerEngine": 1})
    for policy in spec["policies"]:
        policy["pools"] = ["fast"]
    job = stage.job()
    job.submit(spec)
    job.trains(1)
    old = _engines(job)
    begun = time.monotonic()
    job.change(pools=[{**pool, "max": 4}])
    job.until(lambda: len(_engines(job)) == 4, "four engines", 60)
    job.until(lambda: all(job.sampled(pod) for pod in _engines(job) - old), "all work", 120)
    took = time.monotonic() - begun
    assert took < WORKS * slack()
    job.until(lambda: job.status()["pools"][0]["ready"] == 4, "the pool's pods in the status", 30)
    job.completes()
    once(job, LONG, TASKS)


def test_a_deleted_job_leaves_its_claim_from_which_a_model_is_exported(stage: Stage) -> None:
    job = stage.job()
    job.submit(team(steps=100))
    job.pod("trainer")  # imports, and hears nothing else
    _deleted(job)
    job.submit(team(steps=100))
    job.trains(3)
    claimed = stage.cluster.get(job.namespace, "pvc", job.claim())["metadata"]["uid"]
    _deleted(job)
    claim = stage.cluster.get(job.namespace, "pvc", job.claim())
    assert claim["metadata"]["uid"] == claimed
    assert "deletionTimestamp" not in claim["metadata"]
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "solver")
        user.asks(job, "export", job.name, "solver", str(out), "--image", job.images["slim"])
        assert json.loads((out / "config.json").read_text())["hidden_size"] == 16
        assert (out / "model.safetensors").exists()


def _deleted(job: Job) -> None:
    """With everything that is there because of it, in time."""
    begun = time.monotonic()
    job.delete()
    until(lambda: job.children() == [], "all is gone", 180)
    took = time.monotonic() - begun
    assert took < GONE * slack()


def _engines(job: Job) -> set[str]:
    return {pod["metadata"]["name"] for pod in job.pods("engine")}
