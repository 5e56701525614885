"""One agent answers the task in one turn; the job's reward says what that was worth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flexmarl.contracts.base import Model
from flexmarl.data.tasks import Task
from flexmarl.rollout.episode import Team
from flexmarl.rollout.needs import Need
from flexmarl.rollout.workflows.base import CONFIG, Rewards, Template, Workflow, fill_roles


class SingleConfig(Model):
    agent: str | None = None
    """By default the job's first."""
    prompt: str = "{question}"


class Single(Workflow):
    Config = SingleConfig
    gives_rewards = False

    def __init__(self, config: SingleConfig, agents: Sequence[str]) -> None:
        super().__init__(config, agents)
        self._agent = fill_roles(agents, {"agent": config.agent})["agent"]
        self._prompt = Template(config.prompt, (*CONFIG, "prompt"))

    def needs(self) -> Iterable[Need]:
        return self._prompt.needs

    async def run(self, task: Task, team: Team) -> Rewards:
        await team[self._agent].chat(self._prompt.fill(task.record))
        return None
