"""Steps are open when their groups come, whenever that is."""

from __future__ import annotations

from typing import Any, cast

from tests.unit.orchestrator.jobs import make_job

from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.rollouts import Rollouts
from flexmarl.orchestrator.step import Parts
from flexmarl.orchestrator.tasks import Tasks
from flexmarl.orchestrator.workers import Workers

RECORDS = [{"question": str(number)} for number in range(10)]


async def test_a_group_that_finds_its_place_in_a_step_before_that_is_open_is_done() -> None:
    """Its tokens are of a version that the policies have and the job does not, after a restart."""
    job = make_job(pipeline={"maxStaleness": 1, "partialRollout": True})
    nobody = cast(Any, None)
    parts = Parts(job, Limits(), nobody, Workers({}, Limits()), nobody, nobody)
    rollouts = Rollouts(
        parts,
        Tasks(job.spec, RECORDS),
        1,
        version=0,
        stored={},
        draws="",
        refills={},
        remember=nobody,
    )
    rollouts.stand_at(0)
    draws = cast(Any, rollouts)._draws
    draws.issue(8, 0)
    draws.placed[2, 0] = 8
    rollouts.placed(8, (2, 0), rollout_pb2.GroupFinished(oldest_version=1))
    rollouts.stand_at(1)
    assert rollouts.step(2).done == {0}
    assert not rollouts.step(1).done
