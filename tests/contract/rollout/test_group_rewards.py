"""What rewards become of, where they are missing, wrong, late or of single turns."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from flexmarl.contracts.v1 import rollout_pb2

SINGLE = "workflow: {name: single}\nreward: {name: exact-match}"
MINE = "workflow: {entrypoint: 'mine:run', timeout: 20}"
HEAD = "import asyncio\nfrom flexmarl.rollout.api import *\n"


def outcomes(finished: rollout_pb2.GroupFinished) -> dict[str, int]:
    return dict(Counter(episode.outcome for episode in finished.episodes))


@pytest.mark.parametrize("returned", ["math.nan", "math.inf", "{'nobody': 1}", "'good'"])
async def test_what_is_no_reward_is_refused_and_counted(stage: Any, returned: str) -> None:
    code = "import math\nasync def run(task, team):\n    await team['solver'].chat('x')\n"
    async with stage(MINE, code + f"    return {returned}\n") as played:
        assert outcomes(await played.run()) == {"reward-error": 4}
        assert played.samples["solver"].sequences == ()


async def test_an_agent_without_a_reward_is_unscorable(stage: Any) -> None:
    code = "async def run(task, team):\n    await team['solver'].chat('x')\n"
    async with stage(MINE, code) as played:
        assert outcomes(await played.run()) == {"unscorable": 4}
        assert [each.reward for each in played.samples["solver"].sequences] == [None] * 4


async def test_a_policy_that_never_acts_has_an_empty_marker(stage: Any) -> None:
    code = "async def run(task, team):\n    return 1.0\n"
    async with stage(MINE, code) as played:
        assert outcomes(await played.run()) == {"no-turns": 4}
        assert played.samples["solver"].sequences == ()


async def test_the_jobs_reward_outranks_the_workflows(stage: Any) -> None:
    code = """
async def run(task, team):
    await team['solver'].chat('x')
    return 0.25
async def reward(task, episode, bonus):
    assert episode.last("solver").text == "ok"
    return {"solver": episode.returned + bonus}
"""
    spec = MINE + "\nreward: {entrypoint: 'mine:reward', config: {bonus: 0.5}}"
    async with stage(spec, code) as played:
        finished = await played.run()
        assert finished.episodes[0].agents["solver"].reward == 0.75


async def test_a_reward_that_sleeps_for_an_hour_is_counted_and_holds_nobody(stage: Any) -> None:
    code = """
import time
async def run(task, team):
    await team['solver'].chat('x')
def reward(task, episode):
    time.sleep(3600)
"""
    spec = MINE + "\nreward: {entrypoint: 'mine:reward', timeout: 0.05}"
    async with stage(spec, code) as played:
        assert outcomes(await played.run()) == {"reward-timeout": 4}
        assert played.samples["solver"].sequences == ()


async def test_a_reward_that_raises_is_counted_and_never_zero(stage: Any) -> None:
    code = """
async def run(task, team):
    await team['solver'].chat('x')
def reward(task, episode):
    return 1 / 0
"""
    async with stage(MINE + "\nreward: {entrypoint: 'mine:reward'}", code) as played:
        finished = await played.run()
        assert outcomes(finished) == {"reward-error": 4}
        assert "ZeroDivisionError" in finished.episodes[0].detail


async def test_turns_may_have_rewards_of_their_own_and_the_outcome_stays(stage: Any) -> None:
    code = """
async def run(task, team):
    heard = [{"role": "user", "content": "0"}]
    for reward in (0, 1, 0):
        reply = await team["solver"].chat(heard)
        reply.reward = reward
        heard += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "."}]
    return 5.0
"""
    async with stage(MINE, code) as played:
        finished = await played.run()
        assert finished.forks == 0
        (sequence,) = (each for each in played.samples["solver"].sequences if each.episode == 0)
        assert [turn.reward for turn in sequence.turns] == [0.0, 1.0, 0.0]
        assert sequence.reward == 5.0
        assert sequence.loss_mask.sum() == 9
