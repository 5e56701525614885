"""What a step knows of its groups."""

from tests.unit.orchestrator.jobs import make_job

from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.data.tasks import Task
from flexmarl.orchestrator.step import Step


def test_a_group_without_any_token_is_not_of_version_0() -> None:
    step = Step(make_job(pipeline={"maxStaleness": 2}), 2, 6, {}, {})
    task = Task("t", {})
    step.answer(0, task, rollout_pb2.GroupFinished())
    assert step.oldest(2) == 2
    step.answer(1, task, rollout_pb2.GroupFinished(oldest_version=1))
    step.answer(2, task, rollout_pb2.GroupFinished(oldest_version=0))
    assert step.oldest(2) == 0
