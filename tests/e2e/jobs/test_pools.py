"""Four policies on two engines: the same as with an engine each, whatever happens."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from .conftest import MakeJob
from .running import Job, wait_until
from .specs import SCRIPTED, TIRELESS, agent, job, policy

pytestmark = pytest.mark.e2e

NAMES = ("ada", "ben", "cem", "dan")
STEPS = 3


def spec(engine: dict[str, Any], steps: int = STEPS) -> dict[str, Any]:
    """Each has engines of its own."""
    return job(
        {"name": "debate", "config": {"rounds": 2}},
        [policy(name, engine=engine) for name in NAMES],
        [agent(name) for name in NAMES],
        steps=steps,
        seed=3,
        eval={"data": {"uri": "file://tasks.jsonl"}, "tasks": 2},
        batch={"tasksPerStep": 3, "groupSize": 3, "microBatch": 1},
        pipeline={"deterministic": True},
        roles={"engine": TIRELESS, "trainer": {"replicas": 2}},
    )


def pooled(own: dict[str, Any], engines: int, *, slots: bool = False) -> dict[str, Any]:
    found = copy.deepcopy(own)
    found["pools"] = [{"name": "few", "role": "engine", "min": engines, "max": engines}]
    found["balancing"] = {"hysteresisSeconds": 0.5}
    for each in found["policies"]:
        each["pools"] = ["few"]
    if slots:
        found["pools"].append({"name": "slots", "role": "trainer", "min": 2, "max": 2})
        for each in found["policies"]:
            each["pools"].append("slots")
    return found


@pytest.fixture(scope="module")
def alone(make_job: MakeJob) -> Job:
    """Each policy has an engine of its own."""
    done = make_job(spec(SCRIPTED))
    done.complete()
    return done


def test_two_engines_for_four_policies_train_what_four_do(make_job: MakeJob, alone: Job) -> None:
    """One of them is killed in the middle, twice."""
    paced = {
        "kind": "scripted",
        "scripted": {"medianTokens": 6, "p99Tokens": 12, "tokensPerSecond": 40},
    }
    job = make_job(pooled(spec(paced), 2, slots=True))
    running = job.start()
    for number in (0, 1):
        wait_until(lambda: job.ended() or job.steps() > number)  # noqa: B023 - called at once
        assert running.poll() is None
        job.kill(f"engine-few-{number}")
    code, output = job.finish()
    assert code == 0, output + job.logs()
    assert job.checksums() == alone.checksums()
    assert job.rewards() == alone.rewards()
    logs = {path.stem: path.read_text() for path in (job.run_dir / "logs").glob("*.log")}
    assert {name for name in logs if name.startswith("engine")} == {"engine-few-0", "engine-few-1"}
    assert "engine serves another policy" in logs["orchestrator"]
    assert job.left() == []


def test_one_engine_plays_them_all_in_turns(make_job: MakeJob, alone: Job) -> None:
    job = make_job(pooled(spec(SCRIPTED), 1))
    job.complete()
    assert job.checksums() == alone.checksums()
    assert job.rewards() == alone.rewards()
