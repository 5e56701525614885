"""Whatever the user's code raises, and wherever: it ends its episode and no more."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.rollout.test_groups import HEAD, MINE

EXITS = {
    "SystemExit: 3": "sys.exit(3)",
    "SystemExit: ": "sys.exit()",
    "KeyboardInterrupt: ": "raise KeyboardInterrupt",
    "CancelledError: ": "raise asyncio.CancelledError",
    "GeneratorExit: ": "raise GeneratorExit",
    "BaseExceptionGroup: several (1 sub-exception)": (
        "raise BaseExceptionGroup('several', [SystemExit(3)])"
    ),
}
BROKEN = """
import sys
calls = 0
async def breaks(here):
    global calls
    if here == PLACE:
        calls += 1
        if calls == 2:
            await asyncio.sleep(0)
            EXIT
class World:
    def reset(self, task, seed):
        return "x"
    async def step(self, text):
        await breaks("environment")
        return Step("", 1.0, True)
async def run(task, team):
    await team["solver"].chat("x")
    async with asyncio.TaskGroup() as tasks:
        child = tasks.create_task(breaks("task"))
    child.result()
    await breaks("workflow")
async def reward(task, episode):
    await breaks("reward")
    return 1.0
async def keep(group):
    await breaks("filter")
    await breaks("filter")
    return True
"""
PLACES = {
    "workflow": ("workflow-error", MINE),
    "task": ("workflow-error", MINE),
    "environment": (
        "workflow-error",
        "workflow: {name: environment, config: {environment: {entrypoint: 'mine:World'}}}",
    ),
    "reward": ("reward-error", MINE),
    "filter": ("", MINE + "\npipeline: {filter: {entrypoint: 'mine:keep'}}"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("raised", EXITS)
async def test_no_exit_of_the_user_s_code_ends_more_than_its_episode(
    stage: Any, place: str, raised: str
) -> None:
    outcome, spec = PLACES[place]
    code = HEAD + BROKEN.replace("PLACE", repr(place)).replace("EXIT", EXITS[raised])
    async with stage(spec + "\nreward: {entrypoint: 'mine:reward'}", code) as played:
        finished = await played.run()
        broken = [each for each in finished.episodes if each.outcome != "ok"]
        assert [each.outcome for each in broken] == ([outcome] if outcome else [])
        assert len(played.samples["solver"].sequences) == 4 - len(broken)
        if broken and place != "task":  # of which it came as a group
            assert broken[0].detail == raised
