"""The crash matrix in its short form (`make matrix` is the long one): whatever dies, the job trains
what it would have trained."""

import random
from concurrent.futures import Future

import pytest

from .conftest import MakeJob
from .running import Job
from .specs import STEPS, TIRELESS, replicated, stale, team
from .strikes import FROZEN, KILLS, POD_LOST, SECOND_LOST, STORE_LOST, Strike
from .tormented import Struck, deviations, stale_deviations, torment

pytestmark = pytest.mark.e2e
STALENESS = 2
PARTIAL = stale(STEPS, STALENESS, partialRollout=True) | {"eval": team()["eval"]}
"""Of the same tasks as the undisturbed run that all compare with."""


def tormented(job: Job, strikes: list[Strike], chance: random.Random) -> list[Struck]:
    job.start()
    struck = torment(job, chance.sample(strikes, len(strikes)), chance)
    code, output = job.finish()
    assert code == 0, f"{struck}\n{output}{job.logs()}"
    assert [each.name for each in struck if each.recovery is not None], "it was over too soon"
    return struck


def test_whatever_dies_the_job_trains_the_very_same(
    starting_reference: "Future[Job]", make_job: MakeJob
) -> None:
    spec = team()
    job = make_job(spec | {"roles": dict.fromkeys(spec["roles"], TIRELESS)})
    strikes = [*KILLS, POD_LOST, STORE_LOST, SECOND_LOST, FROZEN]
    struck = tormented(job, strikes, random.Random(5))
    assert deviations(job, starting_reference.result()) == [], struck


def test_partial_rollouts_train_every_task_once_and_none_too_old_whatever_dies(
    starting_reference: "Future[Job]", make_job: MakeJob
) -> None:
    job = make_job(replicated(PARTIAL))
    roles = ("orchestrator", "worker", "engine", "trainer")
    strikes = [kill for kill in KILLS if kill.name in roles] + [SECOND_LOST, POD_LOST]
    struck = tormented(job, strikes, random.Random(6))
    assert stale_deviations(job, starting_reference.result(), STALENESS) == [], struck
