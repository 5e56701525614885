"""The crash matrix in its short form (`make matrix` is the long one): whatever dies, the job trains
what it would have trained."""

import random
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from .conftest import MakeJob
from .matrix import PER_RUN, hands
from .running import Job
from .specs import (
    STEPS,
    TIRELESS,
    Spec,
    choosy,
    enduring,
    one_after_the_other,
    replicated,
    selecting,
    stale,
    team,
    unordered,
)
from .strikes import FROZEN, KILLS, POD_LOST, SECOND_LOST, STORE_LOST, Strike
from .tormented import Struck, deviations, stale_deviations, torment, unordered_deviations

pytestmark = pytest.mark.e2e
STALENESS = 2
PARTIAL = stale(STEPS, STALENESS, partialRollout=True) | {"eval": team()["eval"]}
"""Of the same tasks as the undisturbed run that all compare with."""


def tormented(
    make_job: MakeJob, spec: Spec, strikes: list[Strike], chance: random.Random
) -> Iterator[tuple[Job, list[Struck]]]:
    """Jobs that are over, until each of the `strikes` has befallen one."""
    left = chance.sample(strikes, len(strikes))
    while left:
        job = make_job(spec)
        job.start()
        struck = list(torment(job, left, chance))
        code, output = job.finish()
        assert code == 0, f"{struck}\n{output}{job.logs()}"
        assert struck, "it was over too soon"
        left = left[len(struck) :]
        yield job, struck


def tireless(spec: Spec) -> Spec:
    return spec | {"roles": dict.fromkeys(spec["roles"], TIRELESS)}


def test_whatever_dies_the_job_trains_the_very_same(
    starting_reference: "Future[Job]", make_job: MakeJob
) -> None:
    strikes = [*KILLS, POD_LOST, STORE_LOST, SECOND_LOST, FROZEN]
    for job, struck in tormented(make_job, tireless(team()), strikes, random.Random(5)):
        assert deviations(job, starting_reference.result()) == [], struck


def test_selected_and_replayed_groups_are_the_very_same_whatever_dies(make_job: MakeJob) -> None:
    """Of the store's own process the log is whole: groups kept for replay are there again."""
    spec = selecting(team() | {"steps": STEPS // 2})
    reference = make_job(one_after_the_other(spec))
    reference.complete()
    assert sum(line["counts"].get("groups-dropped", 0) for line in reference.lines()) > 0
    replayed = [line["policies"]["solver"]["replayed_groups"] for line in reference.lines()]
    assert sum(replayed) > 0
    roles = ("orchestrator", "worker", "trainer", "store")
    strikes = [kill for kill in KILLS if kill.name in roles] + [POD_LOST]
    for job, struck in tormented(make_job, tireless(spec), strikes, random.Random(7)):
        assert deviations(job, reference) == [], struck


def test_partial_rollouts_train_every_task_once_and_none_too_old_whatever_dies(
    starting_reference: "Future[Job]", make_job: MakeJob
) -> None:
    roles = ("orchestrator", "worker", "engine", "trainer")
    strikes = [kill for kill in KILLS if kill.name in roles] + [SECOND_LOST, POD_LOST]
    for job, struck in tormented(make_job, replicated(PARTIAL), strikes, random.Random(6)):
        assert stale_deviations(job, starting_reference.result(), STALENESS) == [], struck


def test_tasks_that_name_who_plays_trained_as_they_come_are_trained_once_whatever_dies(
    make_job: MakeJob,
) -> None:
    """Weights and metrics but for rounding."""
    spec = unordered(choosy(enduring(10)))
    reference = make_job(one_after_the_other(spec))
    reference.complete()
    turns = {agent["turns"] for line in reference.lines() for agent in line["agents"].values()}
    assert len(turns) > 1
    roles = ("orchestrator", "worker", "trainer")
    strikes = [kill for kill in KILLS if kill.name in roles] + [POD_LOST]
    for job, struck in tormented(make_job, spec, strikes, random.Random(9)):
        assert unordered_deviations(job, reference) == [], struck


def test_every_strike_is_dealt_to_one_run_and_to_all_about_as_many() -> None:
    strikes = KILLS * 50 + [POD_LOST] * 3
    dealt = hands(strikes, random.Random(1))
    assert sorted(one.name for hand in dealt for one in hand) == sorted(s.name for s in strikes)
    assert {len(hand) for hand in dealt} <= {PER_RUN, PER_RUN - 1, PER_RUN - 2}
    assert dealt == hands(strikes, random.Random(1)) != hands(strikes, random.Random(2))
