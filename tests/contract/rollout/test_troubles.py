"""What goes wrong while groups are played: counted, and told once."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs
from tests.contract.rollout.test_selection import MINE, SINGLE, TWO, code_of, counted, group

from flexmarl.experience.samples import GroupId
from flexmarl.rollout.border import ExitError


async def test_a_task_that_always_times_out_is_counted_and_told_once_with_its_id(
    stage: Any,
) -> None:
    code = "import asyncio\nasync def run(task, team):\n    await asyncio.sleep(60)\n"
    async with stage("workflow: {entrypoint: 'mine:run', timeout: 0.05}", code) as played:
        before = counted("flexmarl_rollout_episodes_total", outcome="timeout")
        with capture_logs() as logs:
            for index in range(2):
                finished = await played.run(id=group(1, 1, index))
                assert {episode.outcome for episode in finished.episodes} == {"timeout"}
                assert not finished.HasField("oldest_version")
        assert counted("flexmarl_rollout_episodes_total", outcome="timeout") - before == 8
        told = [entry for entry in logs if entry["event"] == "no episode of a task counts"]
        assert [(entry["id"], entry["outcomes"]) for entry in told] == [("t", {"timeout": 4})]
        assert len(played.kept.groups) == 2  # stored, though empty: the step can close


async def test_a_turn_that_was_cut_and_then_takes_too_long_is_a_timeout_like_any(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no outage of its engine, for which the group would be played again for ever."""
    monkeypatch.setattr("flexmarl.rollout.policies.ACCEPTED_SECONDS", 0.2)
    spec = "workflow: {name: single, timeout: 1}\nreward: {name: exact-match}"
    async with stage(spec) as played:
        engine = played.engines["solver"]
        engine.cuts = [1]

        async def wait(prompt: str) -> None:
            if engine.turns[-1].resumed:
                await asyncio.Event().wait()

        engine.wait = wait
        request = played.request()
        request.episodes = 1
        request.routes[0].version, request.routes[0].min_version = 3, 1
        finished = await played.stub.RunGroup(request, timeout=30)
        assert [episode.outcome for episode in finished.episodes] == ["timeout"]


async def test_rewards_that_are_all_none_are_counted_and_told_once_with_the_task(
    stage: Any,
) -> None:
    code = "async def run(task, team):\n    await team['solver'].chat('x')\n"
    async with stage(MINE, code) as played:
        with capture_logs() as logs:
            for index in range(2):
                await played.run(id=group(1, 1, index))
        told = [entry for entry in logs if entry["event"] == "no episode of a task counts"]
        assert [(entry["id"], entry["outcomes"]) for entry in told] == [("t", {"unscorable": 4})]
        assert len(played.kept.groups) == 2


async def test_what_goes_wrong_is_told_with_the_group_and_the_task(stage: Any) -> None:
    code = "async def run(task, team):\n    raise KeyError('oh')\n"
    async with stage(MINE, code) as played:
        with capture_logs(processors=[merge_contextvars]) as logs:
            await played.run(id=group(1, 2, 3))
        told = [(entry["event"], entry.get("group"), entry.get("task")) for entry in logs]
        assert told == [
            ("episode failed", "1/2/3", "t"),
            ("no episode of a task counts", "1/2/3", "t"),
        ]


async def test_a_callback_that_exits_ends_no_worker_and_is_told_once_with_its_group(
    stage: Any,
) -> None:
    code = """
import asyncio, sys
async def run(task, team):
    asyncio.get_running_loop().call_later(0, sys.exit)
    await team['solver'].chat('x')
    return 1.0
"""
    async with stage(MINE, code) as played:
        with capture_logs(processors=[merge_contextvars]) as logs:
            for index in range(2):
                finished = await played.run(id=group(1, 1, index))
                assert {episode.outcome for episode in finished.episodes} == {"ok"}
        told = [(entry["event"], entry["group"], entry["task"]) for entry in logs]
        assert told == [("code of the job failed, and nobody waits for it", "1/1/0", "t")]


NUMBER = """
import sys
from decimal import Decimal
class Odd:
    def __float__(self):
        sys.exit(3)
async def run(task, team):
    (await team['solver'].chat('x')).reward = Decimal('0.5')
    return Odd() if team['solver'].seed % 2 else 1.0
"""


async def test_a_reward_that_is_no_plain_number_costs_its_episode_at_most(stage: Any) -> None:
    overlong = "\npipeline: {overlong: {buffer: 4}}"
    async with stage(MINE + overlong, NUMBER) as played:
        finished = await played.run()
        assert {each.outcome for each in finished.episodes} == {"ok", "reward-error"}
        for sequence in played.samples["solver"].sequences:
            assert [turn.reward for turn in sequence.turns] == [0.5]


CLASS = """
import sys
from flexmarl.rollout.api import Workflow
class Mine(Workflow):
    async def start(self):
        {start}
    async def close(self):
        {close}
    async def run(self, task, team):
        await team['solver'].chat('x')
        return 1.0
"""


async def test_a_workflow_that_exits_when_it_closes_leaves_the_end_as_it_is(stage: Any) -> None:
    with capture_logs() as logs:
        code = CLASS.format(start="pass", close="sys.exit(3)")
        async with stage("workflow: {entrypoint: 'mine:Mine'}", code) as played:
            await played.run()
    assert [entry["event"] for entry in logs] == ["code of the job did not close"]


async def test_a_workflow_that_exits_when_it_starts_is_an_error_like_any(stage: Any) -> None:
    code = CLASS.format(start="sys.exit(3)", close="pass")
    with pytest.raises(ExitError, match="SystemExit: 3"):
        async with stage("workflow: {entrypoint: 'mine:Mine'}", code):
            pass


async def test_a_policy_that_never_acts_is_counted_and_told_once(stage: Any) -> None:
    code = "async def run(task, team):\n    await team['solver'].chat('x')\n    return 1.0\n"
    async with stage(TWO, code) as played:
        before = counted("flexmarl_rollout_empty_markers_total", policy="critic")
        with capture_logs() as logs:
            for index in range(3):
                await played.run(id=group(1, 1, index))
        assert counted("flexmarl_rollout_empty_markers_total", policy="critic") - before == 3
        told = [entry for entry in logs if entry["event"] == "a policy took no turn"]
        assert [entry["id"] for entry in told] == ["critic"]
        assert all(stored["critic"].sequences == () for stored in played.kept.groups.values())


async def test_an_id_beyond_the_vocabulary_voids_the_group_and_reaches_no_trainer(
    stage: Any,
) -> None:
    async with stage(SINGLE) as played:
        played.engines["solver"].end = 261  # the first that no byte and no special token has
        with pytest.raises(grpc.aio.AioRpcError, match="token 261, of a vocabulary of 261") as bad:
            await played.run()
        assert bad.value.code() is grpc.StatusCode.UNKNOWN
        assert played.kept.groups == {}


async def test_logprobs_that_are_no_numbers_void_the_group_and_are_told_once(stage: Any) -> None:
    async with stage(SINGLE) as played:
        played.engines["solver"].logprob = float("nan")
        before = counted("flexmarl_rollout_bad_answers_total")
        with capture_logs() as logs:
            for _ in range(2):
                with pytest.raises(grpc.aio.AioRpcError, match="not finite") as failed:
                    await played.run()
                assert failed.value.code() is grpc.StatusCode.UNKNOWN
        assert counted("flexmarl_rollout_bad_answers_total") - before >= 2
        assert [e["event"] for e in logs if "wrongly" in e["event"]] == ["engine answers wrongly"]
        assert played.kept.groups == {}


async def test_a_task_that_repeats_is_a_group_of_its_own(stage: Any) -> None:
    async with stage(SINGLE) as played:
        for index in range(2):
            assert not (await played.run(id=group(1, 1, index))).duplicate
        assert len(played.kept.groups) == 2


class Full:
    """A store without room, which makes producers wait."""

    def __init__(self, kept: Any) -> None:
        self.room = asyncio.Event()
        self.waiting = 0
        self._kept = kept

    async def append_group(
        self, group: GroupId, task_id: str, samples: Any, note: bytes = b"", **when: Any
    ) -> bool:
        self.waiting += 1
        await self.room.wait()
        stored: bool = await self._kept.append_group(group, task_id, samples, note)
        return stored


async def test_a_played_group_waits_for_room_and_is_sampled_once(
    stage: Any, kept_groups: Any
) -> None:
    store = Full(kept_groups)
    async with stage(SINGLE, store=store) as played:
        playing = [asyncio.ensure_future(played.run(id=group(1, 1, index))) for index in range(8)]
        async with asyncio.timeout(60):
            while store.waiting < 8:  # noqa: ASYNC110 - it came over gRPC
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert not any(each.done() for each in playing)
        store.room.set()
        assert not any(each.duplicate for each in await asyncio.gather(*playing))
        assert len(played.engines["solver"].turns) == 4 * 8
        assert len(kept_groups.groups) == 8


async def test_a_worker_that_has_too_many_groups_says_that_it_has_no_room(
    stage: Any, kept_groups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is no failure of the group, however long it lasts."""
    monkeypatch.setattr("flexmarl.rollout.worker.MOST_GROUPS", 1)
    store = Full(kept_groups)
    async with stage(SINGLE, store=store) as played:
        first = asyncio.ensure_future(played.run(id=group(1, 1, 0)))
        async with asyncio.timeout(60):
            while not store.waiting:  # noqa: ASYNC110 - it came over gRPC
                await asyncio.sleep(0.01)
        assert await code_of(played.run(id=group(1, 1, 1))) is grpc.StatusCode.RESOURCE_EXHAUSTED
        store.room.set()
        await first
