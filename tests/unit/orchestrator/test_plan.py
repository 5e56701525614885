"""What is due when, and what the messages ask for."""

from tests.unit.orchestrator.jobs import make_job

from flexmarl.contracts.v1 import experience_pb2, rollout_pb2
from flexmarl.data.tasks import Task
from flexmarl.orchestrator.plan import checkpoint_due, eval_due, eval_request, train_request

HELD_OUT = {"data": {"uri": "file://held-out.jsonl"}}
TASK = Task("7", {"question": "1+1"})


def due(every: int, steps: int, first: int = 0) -> list[int]:
    spec = make_job(eval=HELD_OUT | {"everySteps": every}, steps=steps).spec
    done: list[int] = []
    for version in range(first, steps + 1):
        if eval_due(spec, version, done):
            done.append(version)
    return done


def test_evaluations_come_before_the_first_step_after_the_last_and_in_between() -> None:
    assert due(0, 5) == [0, 5]
    assert due(2, 5) == [0, 2, 4, 5]
    assert due(2, 4) == [0, 2, 4]
    assert due(2, 5, first=3) == [3, 4, 5]


def test_without_a_spec_nothing_is_evaluated() -> None:
    assert not eval_due(make_job().spec, 0, [])


def test_checkpoints_come_every_so_often_and_at_the_end() -> None:
    spec = make_job(steps=7, checkpoint={"everySteps": 3}).spec
    assert [version for version in range(1, 8) if checkpoint_due(spec, version)] == [3, 6, 7]


def group(incarnation: int, step: int, index: int) -> experience_pb2.GroupId:
    return experience_pb2.GroupId(incarnation=incarnation, step=step, index=index)


def test_a_group_s_seed_depends_on_job_step_and_index_alone() -> None:
    job = make_job(seed=3)
    first = train_request(job, TASK, group(1, 4, 2), [])
    again = train_request(job, TASK, group(9, 4, 2), [])
    assert first.seed == again.seed
    others = [
        train_request(job, TASK, group(1, 4, 3), []),
        train_request(job, TASK, group(1, 5, 2), []),
        train_request(make_job(seed=4), TASK, group(1, 4, 2), []),
    ]
    assert len({first.seed, *(request.seed for request in others)}) == 4
    assert first.episodes == 2
    assert first.purpose == rollout_pb2.TRAIN


def test_an_evaluation_s_seed_depends_neither_on_the_job_s_nor_on_the_version() -> None:
    def seed(job_seed: int, version: int, index: int, eval_seed: int = 0) -> int:
        job = make_job(seed=job_seed, eval=HELD_OUT | {"seed": eval_seed, "samples": 3})
        request = eval_request(job, TASK, group(1, version, index), [])
        assert request.episodes == 3
        assert request.purpose == rollout_pb2.EVAL
        return request.seed

    assert seed(1, 0, 5) == seed(2, 30, 5)
    assert seed(1, 0, 5) != seed(1, 0, 6)
    assert seed(1, 0, 5) != seed(1, 0, 5, eval_seed=1)


def test_the_first_groups_are_asked_for_readable_episodes() -> None:
    job = make_job()
    asked = [train_request(job, TASK, group(1, 0, i), []).transcripts for i in range(5)]
    assert asked == [True, True, True, False, False]  # groups of two: five episodes
