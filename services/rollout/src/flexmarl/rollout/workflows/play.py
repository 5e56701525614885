"""One agent plays an environment: it reads an observation, acts, and reads the next."""

from __future__ import annotations

from collections.abc import Sequence

from flexmarl.contracts.base import Model, Positive
from flexmarl.data.tasks import Task
from flexmarl.rollout.environments import EnvironmentChoice, EnvironmentFactory, settled
from flexmarl.rollout.episode import Team
from flexmarl.rollout.workflows.base import CONFIG, Rewards, Workflow, fill_roles
from flexmarl.runtime.seeds import derive_seed


class PlayConfig(Model):
    environment: EnvironmentChoice
    agent: str | None = None
    """By default the job's first."""
    max_turns: Positive = 8
    turn_rewards: bool = False
    """Also give each turn the reward of its step; the episode's is the sum in any case."""


class Play(Workflow):
    """Named `environment` in job files."""

    Config = PlayConfig

    def __init__(self, config: PlayConfig, agents: Sequence[str]) -> None:
        super().__init__(config, agents)
        self._agent = fill_roles(agents, {"agent": config.agent})["agent"]
        self._factory = EnvironmentFactory(config.environment, (*CONFIG, "environment"))

    async def run(self, task: Task, team: Team) -> Rewards:
        agent = team[self._agent]
        world = self._factory.make()
        seed = derive_seed(agent.seed, "environment")
        heard = [{"role": "user", "content": await settled(world.reset(task, seed))}]
        total = 0.0
        for _ in range(self.config.max_turns):
            reply = await agent.chat(heard)
            step = await settled(world.step(reply.text))
            total += step.reward
            if self.config.turn_rewards:
                reply.reward = step.reward
            if step.done:
                break
            heard += [
                {"role": "assistant", "content": reply.text},
                {"role": "user", "content": step.observation},
            ]
        return {self._agent: total}
