"""A team of which one agent has nearly all to say, until the other has."""

import asyncio
from pathlib import Path

from flexmarl.rollout.api import Rewards, Task, Team, Workflow

MOVED = Path("/tmp/moved")
"""Once this file is there, on the worker's machine."""
TURNS = 6
"""Of the busy one in an episode, beside each other; the other takes one."""


class Moving(Workflow):
    gives_rewards = False

    async def run(self, task: Task, team: Team) -> Rewards:
        busy, idle = (team[name] for name in (self.agents[::-1] if moved() else self.agents))
        question = f"Say letters: {task.record['question']}"
        asked = (busy.chat(f"{question} ({number})") for number in range(TURNS))
        await asyncio.gather(*asked, idle.chat(question))
        return None


def moved() -> bool:
    return MOVED.exists()
