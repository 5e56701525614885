"""Agents answer side by side, then read each other's answers and answer again, round by round."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from flexmarl.contracts.base import Model
from flexmarl.contracts.problems import Problem
from flexmarl.data.tasks import Task
from flexmarl.rollout.conversation import Reply
from flexmarl.rollout.episode import Team
from flexmarl.rollout.needs import Need
from flexmarl.rollout.plugins import JobCodeError
from flexmarl.rollout.rewards.scorers import ScorerChoice, make_scorer
from flexmarl.rollout.workflows.base import CONFIG, Rewards, Template, Workflow, check_agent


class DebateConfig(Model):
    agents: list[str] | None = None
    """Who debates, at least two; by default all of the job."""
    rounds: Annotated[int, Field(ge=1, le=100)] = 2
    """How often each agent speaks; in the first nobody has heard anybody."""
    prompt: str = "{question}"
    round_prompt: str = "The others answered:\n{answers}\n\nThink again and give your final answer."
    answer: str = "{agent}: {text}"
    """How one of the {answers} is written."""
    scorer: ScorerChoice = ScorerChoice()
    """Of each agent's last answer."""


class Debate(Workflow):
    Config = DebateConfig

    def __init__(self, config: DebateConfig, agents: Sequence[str]) -> None:
        super().__init__(config, agents)
        chosen = agents if config.agents is None else config.agents
        for place, name in enumerate(chosen):
            check_agent(name, agents, (*CONFIG, "agents", place))
        if len(set(chosen)) < max(2, len(chosen)):
            path = ("spec", "agents") if config.agents is None else (*CONFIG, "agents")
            raise JobCodeError(
                Problem(path, f"a debate among {', '.join(chosen)}", "two or more different agents")
            )
        self._debaters = tuple(chosen)
        self._prompt = Template(config.prompt, (*CONFIG, "prompt"))
        self._round = Template(config.round_prompt, (*CONFIG, "roundPrompt"), "answers")
        self._answer = Template(config.answer, (*CONFIG, "answer"), "agent", "text")
        self._rounds = config.rounds
        self._scorer = make_scorer(config.scorer, (*CONFIG, "scorer"))

    def needs(self) -> Iterable[Need]:
        return (*self._prompt.needs, *self._round.needs, *self._scorer.needs())

    async def start(self) -> None:
        await self._scorer.start()

    async def close(self) -> None:
        await self._scorer.close()

    async def run(self, task: Task, team: Team) -> Rewards:
        names = self._debaters
        first = {"role": "user", "content": self._prompt.fill(task.record)}
        heard = {name: [first] for name in names}
        replies: list[Reply] = []
        for number in range(self._rounds):
            if number:
                for name, reply in zip(names, replies, strict=True):
                    others = self._others(name, replies)
                    ask = self._round.fill(task.record, answers=others)
                    heard[name] += [
                        {"role": "assistant", "content": reply.text},
                        {"role": "user", "content": ask},
                    ]
            replies = await asyncio.gather(*(team[name].chat(heard[name]) for name in names))
        scores = await asyncio.gather(
            *(self._scorer.score(reply.text, task.record) for reply in replies)
        )
        return dict(zip(names, scores, strict=True))

    def _others(self, name: str, replies: list[Reply]) -> str:
        return "\n".join(
            self._answer.fill({}, agent=other, text=reply.text)
            for other, reply in zip(self._debaters, replies, strict=True)
            if other != name
        )
