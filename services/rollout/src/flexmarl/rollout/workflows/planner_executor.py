"""A chain: the planner writes a plan, each executor works on what came before it.

All are paid for the answer of the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flexmarl.contracts.base import Model
from flexmarl.contracts.problems import Problem
from flexmarl.data.tasks import Task
from flexmarl.rollout.episode import Team
from flexmarl.rollout.needs import Need
from flexmarl.rollout.plugins import JobCodeError
from flexmarl.rollout.rewards.scorers import ScorerChoice, make_scorer
from flexmarl.rollout.workflows.base import (
    CONFIG,
    Rewards,
    Template,
    Workflow,
    check_agent,
    fill_roles,
)


class PlannerExecutorConfig(Model):
    planner: str | None = None
    """By default the agent of that name, else the job's first."""
    executors: list[str] | None = None
    """In order; by default all other agents."""
    planner_prompt: str = "{question}\n\nWrite a short plan. Do not give the answer."
    executor_prompt: str = "{question}\n\n{previous}\n\nFollow this and give the answer."
    """{plan} is the planner's, {previous} what the agent before wrote."""
    scorer: ScorerChoice = ScorerChoice()
    """Of the last executor's answer."""


class PlannerExecutor(Workflow):
    Config = PlannerExecutorConfig

    def __init__(self, config: PlannerExecutorConfig, agents: Sequence[str]) -> None:
        super().__init__(config, agents)
        self._planner = fill_roles(agents, {"planner": config.planner})["planner"]
        if config.executors is None:
            executors = [agent for agent in agents if agent != self._planner]
        else:
            executors = config.executors
            for place, name in enumerate(executors):
                check_agent(name, agents, (*CONFIG, "executors", place))
        if not executors:
            path = ("spec", "agents") if config.executors is None else (*CONFIG, "executors")
            raise JobCodeError(Problem(path, "no agent is left to execute the plan", "one or more"))
        self._executors = tuple(executors)
        self._plan = Template(config.planner_prompt, (*CONFIG, "plannerPrompt"))
        self._execute = Template(
            config.executor_prompt, (*CONFIG, "executorPrompt"), "plan", "previous"
        )
        self._scorer = make_scorer(config.scorer, (*CONFIG, "scorer"))

    def needs(self) -> Iterable[Need]:
        return (*self._plan.needs, *self._execute.needs, *self._scorer.needs())

    async def start(self) -> None:
        await self._scorer.start()

    async def close(self) -> None:
        await self._scorer.close()

    async def run(self, task: Task, team: Team) -> Rewards:
        plan = (await team[self._planner].chat(self._plan.fill(task.record))).text
        previous = plan
        for name in self._executors:
            ask = self._execute.fill(task.record, plan=plan, previous=previous)
            previous = (await team[name].chat(ask)).text
        score = await self._scorer.score(previous, task.record)
        return dict.fromkeys((self._planner, *self._executors), score)
