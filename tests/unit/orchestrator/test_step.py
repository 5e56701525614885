"""What a step knows of its groups."""

import pytest
from tests.unit.orchestrator.jobs import make_job

from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.data.tasks import Task
from flexmarl.orchestrator.step import Step


def test_when_a_group_was_played_is_told_apart_from_when_it_was_stored() -> None:
    step = Step(make_job(), 0, 6, {}, {})
    said = rollout_pb2.GroupFinished(seconds=5.0, storing_seconds=2.0)
    step.answer(0, Task("t", {}), said)
    step.answer(1, Task("t", {}), said, now=False)
    first, second, *_ = step.finished(0.0, {}, {}, {}).line["groups"]
    assert first["seconds"] - first["played"] == pytest.approx(2.0, abs=1e-3)
    assert first["seconds"] - first["began"] == pytest.approx(5.0, abs=1e-3)
    assert not {"played", "began"} & set(second)  # it waited for its place since


def test_a_group_without_any_token_is_not_of_version_0() -> None:
    step = Step(make_job(pipeline={"maxStaleness": 2}), 2, 6, {}, {})
    task = Task("t", {})
    step.answer(0, task, rollout_pb2.GroupFinished())
    assert step.oldest(2) == 2
    step.answer(1, task, rollout_pb2.GroupFinished(oldest_version=1))
    step.answer(2, task, rollout_pb2.GroupFinished(oldest_version=0))
    assert step.oldest(2) == 0
