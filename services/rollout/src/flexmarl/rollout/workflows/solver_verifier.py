"""A solver answers, a verifier says whether an answer is right; each is paid for being right."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any

from flexmarl.contracts.base import Model
from flexmarl.contracts.problems import Problem, show
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
    field_of,
    fill_roles,
)

_YES = {"true", "yes", "right", "correct", "1"}
_NO = {"false", "no", "wrong", "incorrect", "0"}


class Proposals(Model):
    """Fixed answers of the tasks for the verifier to judge, in place of the solver's."""

    column: str
    """Field of the task that holds the proposal."""
    label: str | None = None
    """Field that says whether it is right; by default the scorer finds out."""


class SolverVerifierConfig(Model):
    solver: str | None = None
    verifier: str | None = None
    """Agents; by default those named solver and verifier, else in the job's order."""
    solver_prompt: str = "{question}"
    verifier_prompt: str = (
        "{question}\n\nProposed answer: {proposal}\n\nIs this answer right? Reply yes or no."
    )
    accept: str = "yes"
    reject: str = "no"
    """The words of a verdict; the last one in the reply counts."""
    proposals: Proposals | None = None
    scorer: ScorerChoice = ScorerChoice()
    """Says whether an answer is right: a score of 1 or more."""


class SolverVerifier(Workflow):
    Config = SolverVerifierConfig

    def __init__(self, config: SolverVerifierConfig, agents: Sequence[str]) -> None:
        super().__init__(config, agents)
        roles = fill_roles(agents, {"solver": config.solver, "verifier": config.verifier})
        self._solver, self._verifier = roles["solver"], roles["verifier"]
        if self._solver == self._verifier:
            raise JobCodeError(
                Problem(
                    (*CONFIG, "verifier"), f"{show(self._verifier)} is the solver; name another"
                )
            )
        self._solver_prompt = Template(config.solver_prompt, (*CONFIG, "solverPrompt"))
        self._verifier_prompt = Template(
            config.verifier_prompt, (*CONFIG, "verifierPrompt"), "proposal"
        )
        self._verdict = re.compile(
            rf"(?<!\w)(?:({re.escape(config.accept)})|({re.escape(config.reject)}))(?!\w)",
            re.IGNORECASE,
        )
        self._proposal = self._label = None
        if config.proposals is not None:
            path = (*CONFIG, "proposals")
            self._proposal = Need(config.proposals.column, (*path, "column"))
            if config.proposals.label is not None:
                self._label = Need(config.proposals.label, (*path, "label"))
        self._scorer = make_scorer(config.scorer, (*CONFIG, "scorer"))

    def needs(self) -> Iterable[Need]:
        fixed = (need for need in (self._proposal, self._label) if need is not None)
        prompts = (*self._solver_prompt.needs, *self._verifier_prompt.needs)
        return (*prompts, *fixed, *self._scorer.needs())

    async def start(self) -> None:
        await self._scorer.start()

    async def close(self) -> None:
        await self._scorer.close()

    async def run(self, task: Task, team: Team) -> Rewards:
        ask = self._solver_prompt.fill(task.record)
        if self._proposal is None:
            answer = await team[self._solver].chat(ask)
            verdict = await team[self._verifier].chat(
                self._verifier_prompt.fill(task.record, proposal=answer.text)
            )
            score = await self._scorer.score(answer.text, task.record)
            right = score >= 1
        else:
            proposal = str(field_of(task.record, self._proposal))
            answer, verdict = await asyncio.gather(
                team[self._solver].chat(ask),
                team[self._verifier].chat(
                    self._verifier_prompt.fill(task.record, proposal=proposal)
                ),
            )
            score = await self._scorer.score(answer.text, task.record)
            right = await self._is_right(proposal, task)
        return {self._solver: score, self._verifier: float(self._judged(verdict.text) is right)}

    def _judged(self, reply: str) -> bool | None:
        """What the verifier said of the answer; None: neither word."""
        said = None
        for match in self._verdict.finditer(reply):
            said = match[1] is not None
        return said

    async def _is_right(self, proposal: str, task: Task) -> bool:
        if self._label is None:
            return await self._scorer.score(proposal, task.record) >= 1
        value = field_of(task.record, self._label)
        truth = _truth(value)
        if truth is None:
            raise JobCodeError(
                Problem(
                    self._label.path,
                    f"field {show(self._label.field)} of task {task.id} is {value!r}",
                    "true or false, yes or no, 1 or 0",
                )
            )
        return truth


def _truth(value: Any) -> bool | None:
    word = str(value).strip().lower()
    return True if word in _YES else False if word in _NO else None
