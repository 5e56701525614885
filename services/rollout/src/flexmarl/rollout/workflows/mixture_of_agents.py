"""Proposers answer side by side; an aggregator reads all answers and gives the final one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Literal

from flexmarl.contracts.base import Model
from flexmarl.contracts.problems import Problem
from flexmarl.data.tasks import Task
from flexmarl.rollout.episode import Team
from flexmarl.rollout.needs import Need
from flexmarl.rollout.plugins import JobCodeError
from flexmarl.rollout.rewards.scorers import ScorerChoice, make_scorer
from flexmarl.rollout.workflows.base import CONFIG, Rewards, Template, Workflow, check_agent


class MixtureConfig(Model):
    proposers: list[str] | None = None
    """By default all agents but the aggregator."""
    aggregator: str | None = None
    """By default the agent of that name, else the job's last."""
    prompt: str = "{question}"
    aggregator_prompt: str = (
        "{question}\n\nProposed answers:\n{answers}\n\nJudge them and give the right answer."
    )
    answer: str = "{number}. {text}"
    """How one of the {answers} is written; {agent} is its author."""
    proposer_reward: Literal["own", "team"] = "own"
    """Whether a proposer is paid for its own answer or for the final one."""
    scorer: ScorerChoice = ScorerChoice()


class MixtureOfAgents(Workflow):
    Config = MixtureConfig

    def __init__(self, config: MixtureConfig, agents: Sequence[str]) -> None:
        super().__init__(config, agents)
        self._aggregator = config.aggregator or (
            "aggregator" if "aggregator" in agents else agents[-1]
        )
        check_agent(self._aggregator, agents, (*CONFIG, "aggregator"))
        if config.proposers is None:
            proposers = [agent for agent in agents if agent != self._aggregator]
        else:
            proposers = config.proposers
            for place, name in enumerate(proposers):
                check_agent(name, agents, (*CONFIG, "proposers", place))
        if not proposers or self._aggregator in proposers:
            path = ("spec", "agents") if config.proposers is None else (*CONFIG, "proposers")
            raise JobCodeError(
                Problem(
                    path,
                    f"proposers are {', '.join(proposers) or 'none'}, "
                    f"the aggregator is {self._aggregator}",
                    "one or more proposers besides the aggregator",
                )
            )
        self._proposers = tuple(proposers)
        self._prompt = Template(config.prompt, (*CONFIG, "prompt"))
        self._aggregate = Template(
            config.aggregator_prompt, (*CONFIG, "aggregatorPrompt"), "answers"
        )
        self._answer = Template(config.answer, (*CONFIG, "answer"), "number", "agent", "text")
        self._own = config.proposer_reward == "own"
        self._scorer = make_scorer(config.scorer, (*CONFIG, "scorer"))

    def needs(self) -> Iterable[Need]:
        return (*self._prompt.needs, *self._aggregate.needs, *self._scorer.needs())

    async def start(self) -> None:
        await self._scorer.start()

    async def close(self) -> None:
        await self._scorer.close()

    async def run(self, task: Task, team: Team) -> Rewards:
        ask = self._prompt.fill(task.record)
        proposals = await asyncio.gather(*(team[name].chat(ask) for name in self._proposers))
        answers = "\n".join(
            self._answer.fill({}, number=str(number), agent=name, text=reply.text)
            for number, (name, reply) in enumerate(
                zip(self._proposers, proposals, strict=True), start=1
            )
        )
        final = await team[self._aggregator].chat(
            self._aggregate.fill(task.record, answers=answers)
        )
        result = await self._scorer.score(final.text, task.record)
        rewards: dict[str, float | None] = {self._aggregator: result}
        for name, reply in zip(self._proposers, proposals, strict=True):
            own = await self._scorer.score(reply.text, task.record) if self._own else result
            rewards[name] = own
        return rewards
