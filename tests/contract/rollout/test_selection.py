"""Groups that are held, dropped or shaped, and tasks that need only some of the agents."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from prometheus_client import REGISTRY
from tests.contract.rollout.conftest import KeptGroups

from flexmarl.contracts.v1 import experience_pb2, rollout_pb2
from flexmarl.experience.samples import GroupId
from flexmarl.rollout.held import HeldGroups
from flexmarl.runtime.errors import StalePolicyError, UnavailableError

SINGLE = "workflow: {name: single}\nreward: {name: exact-match}"
MINE = "workflow: {entrypoint: 'mine:run', timeout: 20}"
CONTRAST = "\npipeline: {filter: {name: contrast}}"
ODD = """
async def run(task, team):
    await team['solver'].chat('x')
    return float(team['solver'].seed % 2)
"""
TWO = """
policies:
  - {name: solver, model: {uri: "random://llama?hidden=64&layers=2&heads=4"}}
  - {name: critic, model: {uri: "random://llama?hidden=64&layers=2&heads=4"}}
agents: [{name: solver, policy: solver}, {name: critic, policy: critic}]
workflow: {entrypoint: 'mine:run', participants: needs}
"""


def group(incarnation: int, step: int, index: int) -> experience_pb2.GroupId:
    return experience_pb2.GroupId(incarnation=incarnation, step=step, index=index)


async def place(
    played: Any, draw: experience_pb2.GroupId, where: experience_pb2.GroupId
) -> rollout_pb2.PlaceGroupResponse:
    request = rollout_pb2.PlaceGroupRequest(played=draw, place=where)
    answer: rollout_pb2.PlaceGroupResponse = await played.stub.PlaceGroup(request, timeout=30)
    return answer


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value.code()


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_a_held_group_is_stored_where_it_is_placed(stage: Any) -> None:
    async with stage(SINGLE) as played:
        finished = await played.run(id=group(1, 1, 0), hold=True)
        assert (finished.oldest_version, finished.duplicate) == (1, False)
        assert played.kept.groups == {}
        before = counted("flexmarl_rollout_staleness_versions_count", policy="solver")
        assert not (await place(played, group(1, 1, 0), group(1, 3, 5))).duplicate
        assert list(played.kept.groups) == [GroupId(1, 3, 5)]
        samples = played.samples["solver"]
        assert samples.version == 1
        assert [sequence.id for sequence in samples.sequences] == [
            f"1/3/5/{episode}/solver/0" for episode in range(4)
        ]
        tokens = sum(int(sequence.loss_mask.sum()) for sequence in samples.sequences)
        after = counted("flexmarl_rollout_staleness_versions_count", policy="solver")
        assert after - before == tokens
        assert (await place(played, group(1, 1, 0), group(1, 3, 5))).duplicate
        assert len(played.kept.groups) == 1


async def test_a_held_group_that_finds_the_store_full_is_asked_for_again(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flexmarl.rollout.worker.PLACE_SECONDS", 0.1)
    full = asyncio.Event()

    class Store(KeptGroups):
        async def append_group(self, *args: Any, **kwargs: Any) -> bool:
            if full.is_set():
                await asyncio.Event().wait()
            return await super().append_group(*args, **kwargs)

    store = Store()
    async with stage(SINGLE, store=store) as played:
        await played.run(id=group(1, 1, 0), hold=True)
        full.set()
        for _ in range(2):
            code = await code_of(place(played, group(1, 1, 0), group(1, 3, 5)))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        full.clear()
        assert not (await place(played, group(1, 1, 0), group(1, 3, 5))).duplicate
        assert list(store.groups) == [GroupId(1, 3, 5)]


async def test_what_the_store_took_of_a_groups_time_is_told(stage: Any) -> None:
    class Slow(KeptGroups):
        async def append_group(self, *args: Any, **kwargs: Any) -> bool:
            await asyncio.sleep(0.2)
            return await super().append_group(*args, **kwargs)

    async with stage(SINGLE, store=Slow()) as played:
        finished = await played.run()
        assert 0.2 <= finished.storing_seconds < finished.seconds


async def test_what_is_not_held_must_be_played_again(stage: Any) -> None:
    async with stage(SINGLE) as played:
        await played.run(id=group(1, 1, 0))
        code = await code_of(place(played, group(1, 1, 0), group(1, 1, 0)))
        assert code is grpc.StatusCode.NOT_FOUND


async def test_groups_of_an_older_incarnation_are_forgotten(stage: Any) -> None:
    async with stage(SINGLE) as played:
        await played.run(id=group(1, 1, 0), hold=True)
        await played.run(id=group(2, 1, 1), purpose=rollout_pb2.EVAL)
        code = await code_of(place(played, group(1, 1, 0), group(1, 1, 0)))
        assert code is grpc.StatusCode.ABORTED
        turns = len(played.engines["solver"].turns)
        for more in ({}, {"hold": True}, {"purpose": rollout_pb2.EVAL}):
            call = played.run(id=group(1, 1, 2), **more)
            assert await code_of(call) is grpc.StatusCode.ABORTED
        assert len(played.engines["solver"].turns) == turns  # none for whoever was replaced
        code = await code_of(place(played, group(2, 1, 0), group(2, 1, 0)))
        assert code is grpc.StatusCode.NOT_FOUND


async def test_a_worker_holds_so_many_groups_and_refuses_more(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeldGroups.__init__, "__defaults__", (2, 1 << 20))
    async with stage(SINGLE) as played:
        for index in range(2):
            await played.run(id=group(1, 1, index), hold=True)
        code = await code_of(played.run(id=group(1, 1, 2), hold=True))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        await played.run(id=group(1, 1, 3))  # goes straight to the store
        await place(played, group(1, 1, 0), group(1, 1, 0))
        await played.run(id=group(1, 1, 2), hold=True)


async def test_a_group_that_nobody_asks_for_is_held_until_no_step_takes_it(stage: Any) -> None:
    """The answer got lost, and another worker played it again."""
    pipeline = "\npipeline: {maxStaleness: 1, partialRollout: true}"
    async with stage(SINGLE + pipeline) as played:

        async def play(index: int, since: int) -> None:
            request = played.request(id=group(1, since, index), hold=True)
            request.routes[0].version, request.routes[0].min_version = since + 1, since
            played.engines["solver"].version = since
            await played.stub.RunGroup(request, timeout=30)

        def held() -> float:
            return counted("flexmarl_rollout_held_groups")

        await play(0, 1)
        await play(1, 2)
        assert held() == 2
        await play(2, 3)
        assert held() == 2
        code = await code_of(place(played, group(1, 1, 0), group(1, 3, 0)))
        assert code is grpc.StatusCode.NOT_FOUND


class Refusing:
    """A store that has its reasons, twice."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.places: list[GroupId] = []

    async def append_group(
        self, group: GroupId, task_id: str, samples: Any, note: bytes = b"", **when: Any
    ) -> bool:
        self.places.append(group)
        if self.errors:
            raise self.errors.pop(0)
        return True


async def test_after_an_outage_a_group_can_only_go_where_it_may_be_already(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flexmarl.rollout.worker.PLACE_SECONDS", 0.1)
    store = Refusing(UnavailableError("away"))
    async with stage(SINGLE, store=store) as played:
        await played.run(id=group(1, 1, 0), hold=True)
        code = await code_of(place(played, group(1, 1, 0), group(1, 1, 4)))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        code = await code_of(place(played, group(1, 1, 0), group(1, 1, 5)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        await place(played, group(1, 1, 0), group(1, 1, 4))
        assert store.places == [GroupId(1, 1, 4)] * 2


async def test_a_place_that_is_too_late_for_a_group_leaves_it_held(stage: Any) -> None:
    store = Refusing(StalePolicyError("too old"))
    async with stage(SINGLE, store=store) as played:
        await played.run(id=group(1, 1, 0), hold=True)
        code = await code_of(place(played, group(1, 1, 0), group(1, 9, 0)))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert not (await place(played, group(1, 1, 0), group(1, 2, 0))).duplicate


async def test_the_same_place_asked_for_at_once_is_given_once(stage: Any) -> None:
    async with stage(SINGLE) as played:
        await played.run(id=group(1, 1, 0), hold=True)
        answers = await asyncio.gather(
            *(place(played, group(1, 1, 0), group(1, 1, 1)) for _ in range(4))
        )
        assert sorted(answer.duplicate for answer in answers) == [False, True, True, True]


async def test_turns_cut_by_an_update_are_one_turn_with_a_version_per_token(stage: Any) -> None:
    async with stage(SINGLE) as played:
        engine = played.engines["solver"]
        engine.cuts = [1]
        engine.say = lambda _: "abc"
        request = played.request()
        request.id.step = 3
        request.routes[0].version, request.routes[0].min_version = 3, 1
        before = counted("flexmarl_rollout_resumed_turns_total")
        finished = await played.stub.RunGroup(request, timeout=30)
        assert (finished.oldest_version, finished.resumed_turns) == (1, 1)
        assert counted("flexmarl_rollout_resumed_turns_total") - before == 1
        assert played.samples["solver"].version == 1
        cut = [
            [(span.version, span.start, span.end) for span in turn.versions]
            for sequence in played.samples["solver"].sequences
            for turn in sequence.turns
            if len(turn.versions) > 1
        ]
        assert cut == [[(1, 0, 1), (2, 1, 5)]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"purpose": rollout_pb2.EVAL, "hold": True}, "an evaluation stores nothing"),
        ({}, "min_version is 2, above the version 1"),
    ],
)
async def test_what_contradicts_itself_is_refused(
    stage: Any, change: dict[str, Any], words: str
) -> None:
    async with stage(SINGLE) as played:
        request = played.request(**change)
        if not change:
            request.routes[0].min_version = 2
        with pytest.raises(grpc.aio.AioRpcError, match=words) as failed:
            await played.stub.RunGroup(request, timeout=30)
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_group_without_contrast_is_dropped_unless_it_is_the_last_try(stage: Any) -> None:
    async with stage(SINGLE + CONTRAST) as played:
        before = counted("flexmarl_rollout_dropped_groups_total")
        finished = await played.run(hold=True)
        assert finished.dropped
        assert len(finished.episodes) == 4  # it is told how they went
        assert counted("flexmarl_rollout_dropped_groups_total") - before == 1
        code = await code_of(place(played, group(1, 1, 0), group(1, 1, 0)))
        assert code is grpc.StatusCode.NOT_FOUND
        assert played.kept.groups == {}
        assert not (await played.run(final=True)).dropped
        assert len(played.kept.groups) == 1
        evaluated = await played.run(purpose=rollout_pb2.EVAL)
        assert not evaluated.dropped


async def test_a_group_with_contrast_is_kept(stage: Any) -> None:
    async with stage(MINE + CONTRAST, ODD) as played:
        request = played.request()
        request.episodes = 16
        finished = await played.stub.RunGroup(request, timeout=30)
        rewards = {episode.agents["solver"].reward for episode in finished.episodes}
        assert rewards == {0.0, 1.0}
        assert not finished.dropped


async def test_ones_own_filter_sees_what_was_played(stage: Any) -> None:
    code = (
        ODD
        + """
from flexmarl.rollout.api import PlayedGroup
def keep(group: PlayedGroup) -> bool:
    assert len(group.episodes) == len(group.rewards("solver")) == 4
    assert group.episodes[0].turns[0].text == "ok"
    return group.task.record["answer"] != "2"
"""
    )
    spec = MINE + "\npipeline: {filter: {entrypoint: 'mine:keep'}}"
    async with stage(spec, code) as played:
        assert (await played.run()).dropped
        request = played.request()
        request.task = '{"answer": "3"}'
        assert not (await played.stub.RunGroup(request, timeout=30)).dropped


async def test_overlong_turns_are_trained_worse_and_reported_as_they_are(stage: Any) -> None:
    spec = """
agents: [{name: solver, policy: solver, sampling: {maxTokens: 10}}]
workflow: {name: single}
reward: {name: exact-match}
pipeline: {overlong: {buffer: 4, penalty: 0.5}}
"""
    async with stage(spec) as played:
        played.engines["solver"].say = lambda _: "1234567"  # and the end: 8 of 10
        finished = await played.run()
        assert finished.episodes[0].agents["solver"].reward == 0.0
        assert {each.reward for each in played.samples["solver"].sequences} == {-0.25}


async def test_a_task_plays_without_the_policies_that_it_does_not_need(stage: Any) -> None:
    code = """
async def run(task, team):
    assert team["solver"].takes_part and not team["critic"].takes_part
    await team["solver"].chat("x")
    return 1.0
"""
    async with stage(TWO, code) as played:
        request = played.request()
        del request.routes[1]
        finished = await played.stub.RunGroup(request, timeout=30)
        assert {episode.outcome for episode in finished.episodes} == {"ok"}
        assert "critic" not in finished.episodes[0].agents
        assert len(played.samples["solver"].sequences) == 4
        empty = played.samples["critic"]
        assert (empty.version, empty.sequences) == (1, ())


async def test_asking_an_agent_that_the_task_does_not_need_is_the_programs_error(
    stage: Any,
) -> None:
    code = "async def run(task, team):\n    await team['critic'].chat('x')\n"
    async with stage(TWO, code) as played:
        request = played.request()
        del request.routes[1]
        finished = await played.stub.RunGroup(request, timeout=30)
        assert {episode.outcome for episode in finished.episodes} == {"workflow-error"}
        assert (
            "agent critic is not a participant of this task (workflow.participants)"
            in finished.episodes[0].detail
        )
