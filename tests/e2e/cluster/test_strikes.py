"""Whatever dies in the middle of a step: the job is complete, as if nothing had happened."""

from __future__ import annotations

import json
import random
import time

import pytest

from .jobs import Job, once, same_as
from .specs import STEPS, TASKS, Spec, slow, team
from .stage import Stage

ROLES = ("orchestrator", "rollout-worker", "engine", "trainer", "experience")
KILLED, LOST = "killed", "lost"


def struck() -> Spec:
    """The team, in steps that are longer than what it takes to strike."""
    return slow(speed=4)


def strike(job: Job, role: str, how: str) -> None:
    """A role's process is killed, or its pod is lost."""
    if how == KILLED:
        job.kill(role)
    else:
        job.lose(role)


def ends_the_same(stage: Stage, job: Job) -> None:
    job.completes()
    once(job, STEPS, TASKS)
    same_as(job, stage.undisturbed())


@pytest.mark.long
@pytest.mark.parametrize("first", [KILLED, LOST])
def test_each_role_is_struck_once(stage: Stage, first: str) -> None:
    """One after the other, each in a step of its own: processes and pods by turns."""
    job = stage.job()
    job.submit(struck())
    ways = (KILLED, LOST) if first == KILLED else (LOST, KILLED)
    for number, role in enumerate(ROLES):
        job.trains(number + 1)
        strike(job, role, ways[number % 2])
    ends_the_same(stage, job)
    restarts = job.status()["restarts"]
    killed = ROLES[ways.index(KILLED) :: 2]
    assert {role: count for role, count in restarts.items() if role != "weights"} == dict.fromkeys(
        killed, 1
    )


@pytest.mark.full
@pytest.mark.parametrize("how", [KILLED, LOST])
@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_struck_again_and_again(stage: Stage, role: str, how: str) -> None:
    job, chance = stage.job(), random.Random(f"{role} {how}")
    job.submit(struck())
    for number in range(3):
        job.trains(2 * number + 1)
        time.sleep(chance.random() * 2)
        strike(job, role, how)
    ends_the_same(stage, job)


def test_what_keeps_a_trainers_tensors_is_killed_by_itself_in_the_middle_of_a_step(
    stage: Stage,
) -> None:
    job = stage.job()
    job.submit(struck())
    job.trains(1)
    kills, step = 0, -1
    while job.step() != step:  # until one was not between two steps
        step = job.step()
        job.kill("trainer", sidecar="weights")
        kills += 1
    assert step < STEPS
    ends_the_same(stage, job)
    assert job.status()["restarts"] == {"trainer": kills}


@pytest.mark.parametrize(
    ("role", "field", "says", "lives"),
    [
        ("orchestrator", "orchestrator", "after 1 restarts", 2),
        # Of containers that start again in their pod the node has removed the first.
        ("rollout-worker", "worker", "more often than the 1 restarts", 1),
        ("trainer", "trainer", "more often than the 1 restarts", 1),
    ],
)
def test_a_role_that_fails_too_often_fails_the_job(
    stage: Stage, role: str, field: str, says: str, lives: int
) -> None:
    job = stage.job()
    job.submit(team(steps=100, roles={field: {"restartPolicy": {"max": 1}}}))
    for number in range(2):
        job.trains(number + 1)
        job.speaks(role)
        job.kill(role)
    status = job.reaches("Failed")
    assert status["reason"] == "RestartsExceeded"
    assert says in status["message"]
    assert status["failure"]["role"] == role
    assert status["failure"]["exitCode"] == 137
    job.without_pods()
    kept = stage.cluster.get(job.namespace, "configmap", f"{job.name}-evidence")
    roles = json.loads(kept["metadata"]["annotations"]["flexmarl.io/roles"])
    assert {*roles.values()} == {*ROLES}
    said = [kept["data"][entry] for entry, of in roles.items() if of == role]
    assert sum(f'"process": "{role}"' in life for life in said) >= lives, said
