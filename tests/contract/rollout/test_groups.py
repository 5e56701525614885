from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from flexmarl.contracts.v1 import rollout_pb2

SINGLE = "workflow: {name: single}\nreward: {name: exact-match}"
MINE = "workflow: {entrypoint: 'mine:run', timeout: 20}"
HEAD = "import asyncio\nfrom flexmarl.rollout.api import *\n"


def outcomes(finished: rollout_pb2.GroupFinished) -> dict[str, int]:
    return dict(Counter(episode.outcome for episode in finished.episodes))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_group_is_played_stored_and_told(stage: Any) -> None:
    async with stage(SINGLE) as played:
        engine = played.engines["solver"]
        engine.say = lambda prompt: "2"
        finished = await played.run(transcripts=True)
        assert outcomes(finished) == {"ok": 4}
        assert [len(request.turns) for request in engine.requests] == [4]
        samples = played.samples["solver"]
        assert (samples.policy, samples.version) == ("solver", 1)
        assert [sequence.id for sequence in samples.sequences] == [
            f"1/1/0/{episode}/solver/0" for episode in range(4)
        ]
        sequence = samples.sequences[0]
        sampled = sequence.token_ids[sequence.loss_mask == 1]
        assert sampled.tolist() == [*b"2", 256]
        assert sequence.logprobs[sequence.loss_mask == 1].tolist() == [-0.5, -0.5]
        assert sequence.reward == 1.0
        prompt = np.frombuffer(engine.turns[0].prompt_ids, "<i4")
        assert sequence.token_ids[: len(prompt)].tolist() == prompt.tolist()
        stats = finished.episodes[0].agents["solver"]
        assert (stats.turns, stats.prompt_tokens, stats.sampled_tokens) == (1, len(prompt), 2)
        (turn,) = json.loads(finished.episodes[0].transcript)["turns"]
        assert turn == {
            "agent": "solver",
            "messages": [{"role": "user", "content": "1+1"}],
            "text": "2",
            "finish_reason": "stop",
            "tokens": 2,
        }


async def test_seeds_are_those_of_the_group_episode_and_turn(stage: Any) -> None:
    async with stage(SINGLE) as played:
        await played.run()
        seeds = [turn.seed for turn in played.engines["solver"].turns]
        assert len(set(seeds)) == 4
        await played.run()
        assert [turn.seed for turn in played.engines["solver"].turns][4:] == seeds


async def test_of_a_turn_that_was_tried_twice_only_the_last_try_is_trained(stage: Any) -> None:
    async with stage(SINGLE) as played:
        engine = played.engines["solver"]

        async def cut_once(prompt: str) -> None:
            first = len(engine.requests) == 1
            engine.finish = "abort" if first else "stop"
            engine.say = lambda _: "half" if first else "whole"

        engine.wait = cut_once
        finished = await played.run()
        assert outcomes(finished) == {"ok": 4}
        assert len(engine.turns) == 8
        assert finished.episodes[0].agents["solver"].turns == 1
        for sequence in played.samples["solver"].sequences:
            said = sequence.token_ids[sequence.loss_mask == 1].tolist()
            assert said == [*b"whole", 256]


async def test_a_group_played_again_is_a_duplicate(stage: Any) -> None:
    async with stage(SINGLE) as played:
        assert not (await played.run()).duplicate
        assert (await played.run()).duplicate


async def test_an_evaluation_stores_nothing(stage: Any) -> None:
    async with stage(SINGLE) as played:
        finished = await played.run(purpose=rollout_pb2.EVAL)
        assert outcomes(finished) == {"ok": 4}
        assert finished.episodes[0].agents["solver"].reward == 0.0
        assert played.kept.groups == {}


async def test_an_episode_that_raises_is_excluded_and_counted(stage: Any) -> None:
    code = (
        HEAD
        + """
class Run(Workflow):
    def __init__(self, config, agents):
        super().__init__(config, agents)
        self.calls = 0
    async def run(self, task, team):
        await team["solver"].chat("x")
        self.calls += 1
        if self.calls == 2:
            raise KeyError("oh")
        return 1.0
"""
    )
    async with stage("workflow: {entrypoint: 'mine:Run'}", code) as played:
        finished = await played.run()
        assert outcomes(finished) == {"ok": 3, "workflow-error": 1}
        (broken,) = (each for each in finished.episodes if each.outcome != "ok")
        assert broken.detail == "KeyError: 'oh'"
        assert not broken.agents["solver"].HasField("reward")
        assert len(played.samples["solver"].sequences) == 3


async def test_turns_that_a_call_has_cut_by_top_p_or_top_k_say_so(stage: Any) -> None:
    """Whatever the job file says of their agent."""
    code = """
async def run(task, team):
    solver = team["solver"]
    await solver.chat("1")
    await solver.chat("2", top_p=0.5)
    await solver.chat("3", top_p=1.0)
    await solver.chat("4", top_p=1.0, top_k=4)
    return 1.0
"""
    agents = "\nagents: [{name: solver, policy: solver, sampling: {topP: 0.9}}]"
    async with stage(MINE + agents, code) as played:
        await played.run()
        sequences = played.samples["solver"].sequences[:4]
        said = [turn.truncated for sequence in sequences for turn in sequence.turns]
        assert said == [True, True, False, True]


async def test_a_straggler_times_out_and_the_group_is_stored(stage: Any) -> None:
    code = (
        HEAD
        + """
async def run(task, team):
    reply = await team["solver"].chat("x")
    if team["solver"].seed % 2:
        await asyncio.Event().wait()
    return 1.0
"""
    )
    async with stage("workflow: {entrypoint: 'mine:run', timeout: 0.5}", code) as played:
        finished = await played.run()
        counted = outcomes(finished)
        assert set(counted) <= {"ok", "timeout"}
        assert counted["timeout"] >= 1
        assert len(played.samples["solver"].sequences) == counted.get("ok", 0)


async def test_a_changed_history_is_a_fork_in_the_count_and_the_samples(stage: Any) -> None:
    code = """
async def run(task, team):
    first = [{"role": "user", "content": "x"}]
    reply = await team["solver"].chat(first)
    await team["solver"].chat(
        [*first, {"role": "assistant", "content": "changed"}, {"role": "user", "content": "y"}]
    )
    return 1.0
"""
    async with stage(MINE, code) as played:
        finished = await played.run()
        assert finished.forks == 4
        assert len(played.samples["solver"].sequences) == 8


async def test_agents_of_one_policy_share_its_samples(stage: Any) -> None:
    spec = """
agents: [{name: a, policy: solver, systemPrompt: A}, {name: b, policy: solver, systemPrompt: B}]
workflow: {name: debate, config: {rounds: 1}}
"""
    async with stage(spec) as played:
        await played.run()
        names = [sequence.id for sequence in played.samples["solver"].sequences]
        assert names[:2] == ["1/1/0/0/a/0", "1/1/0/0/b/0"]
        assert len(names) == 8


async def test_samples_reach_the_policy_that_sampled_them(stage: Any) -> None:
    spec = """
policies:
  - {name: solver, model: {uri: "random://llama?hidden=64&layers=2&heads=4"}}
  - {name: verifier, model: {uri: "random://llama?hidden=64&layers=2&heads=4"}}
agents: [{name: verifier, policy: verifier}, {name: solver, policy: solver}]
workflow: {name: solver-verifier}
"""
    async with stage(spec) as played:
        played.engines["solver"].say = lambda _: "2"
        played.engines["verifier"].say = lambda _: "yes"
        await played.run()
        said = {
            name: {bytes(each.token_ids[each.loss_mask == 1][:-1].tolist()) for each in s.sequences}
            for name, s in played.samples.items()
        }
        assert said == {"solver": {b"2"}, "verifier": {b"yes"}}


async def test_a_stale_route_voids_the_group_even_if_the_program_hides_it(stage: Any) -> None:
    code = """
async def run(task, team):
    try:
        await team['solver'].chat('x')
    except Exception:
        return 0.0
"""
    async with stage(MINE, code) as played:
        request = played.request()
        played.engines["solver"].version = 2
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await played.stub.RunGroup(request, timeout=30)
        assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert played.kept.groups == {}


async def test_a_prompt_beyond_the_context_is_the_programs_error(stage: Any) -> None:
    code = "async def run(task, team):\n    await team['solver'].chat('x' * 20_000)\n"
    async with stage(MINE, code) as played:
        finished = await played.run()
        assert outcomes(finished) == {"workflow-error": 4}
        assert "longer than the context" in finished.episodes[0].detail


async def test_cancelling_a_group_cancels_its_episodes_and_aborts_their_turns(stage: Any) -> None:
    async with stage(SINGLE) as played:
        engine = played.engines["solver"]
        engine.wait = lambda _: asyncio.Event().wait()
        call = played.stub.RunGroup(played.request(), timeout=30)
        running = asyncio.ensure_future(call.code())
        await until(lambda: len(engine.turns) == 4)
        call.cancel()
        assert await running is grpc.StatusCode.CANCELLED
        await until(lambda: len(engine.aborted) == 4)
        assert set(engine.aborted) == {turn.id for turn in engine.turns}


async def test_turns_that_a_program_left_behind_are_aborted(stage: Any) -> None:
    code = (
        HEAD
        + """
async def run(task, team):
    async def never():
        await team["solver"].chat("slow")
    left = asyncio.ensure_future(never())
    await team["solver"].chat("fast")
    return 1.0
"""
    )
    async with stage(MINE, code) as played:
        engine = played.engines["solver"]

        async def wait(prompt: str) -> None:
            if "slow" in prompt:
                await asyncio.Event().wait()

        engine.wait = wait
        assert outcomes(await played.run()) == {"ok": 4}
        assert len(played.samples["solver"].sequences) == 4
        await until(lambda: len(engine.aborted) == 4)


async def test_an_engine_that_is_away_beyond_the_timeout_voids_the_group(stage: Any) -> None:
    spec = "workflow: {name: single, timeout: 1}\nreward: {name: exact-match}"
    async with stage(spec) as played:
        played.engines["solver"].loaded = False
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await played.run()
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_task_without_the_field_fails_with_its_name(stage: Any) -> None:
    async with stage(SINGLE) as played:
        request = played.request()
        request.task = '{"query": "1+1"}'
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await played.stub.RunGroup(request, timeout=30)
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert 'no field "question"' in str(failed.value.details())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": "[1]"}, "no JSON object"),
        ({"task": "{"}, "no JSON"),
        ({"episodes": 0}, "episodes is 0"),
        ({"routes": []}, "no route for policy solver"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(
    stage: Any, change: dict[str, Any], words: str
) -> None:
    async with stage(SINGLE) as played:
        request = played.request()
        for key, value in change.items():
            request.ClearField(key)
            if value:
                setattr(request, key, value)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await played.stub.RunGroup(request, timeout=30)
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert words in str(failed.value.details())


async def test_a_game_is_played_to_its_end(stage: Any) -> None:
    code = """
from flexmarl.rollout.api import Step
class Count:
    def __init__(self, upto):
        self.upto = upto
    def reset(self, task, seed):
        self.seen = 0
        return "go"
    async def step(self, text):
        self.seen += 1
        return Step(f"{self.seen}", reward=1.0, done=self.seen == self.upto)
"""
    spec = """
workflow:
  name: environment
  config: {environment: {entrypoint: "mine:Count", config: {upto: 3}}, turnRewards: true}
"""
    async with stage(spec, code) as played:
        finished = await played.run()
        assert finished.episodes[0].agents["solver"].reward == 3.0
        assert finished.episodes[0].agents["solver"].turns == 3
        assert finished.forks == 0
        sequence = played.samples["solver"].sequences[0]
        assert [turn.reward for turn in sequence.turns] == [1.0, 1.0, 1.0]
        assert math.isclose(sequence.reward or 0.0, 3.0)
