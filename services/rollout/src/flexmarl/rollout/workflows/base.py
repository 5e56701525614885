"""What a workflow is: plain Python that decides who speaks when and what it was worth."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from flexmarl.contracts.base import Model
from flexmarl.contracts.problems import FieldPath, Problem, nearest, one_of, show
from flexmarl.contracts.templates import TemplateError, fields_in
from flexmarl.data.tasks import Task
from flexmarl.rollout.episode import Team
from flexmarl.rollout.needs import Need
from flexmarl.rollout.plugins import JobCodeError

Rewards: TypeAlias = float | Mapping[str, float | None] | None
"""One for all agents, or per agent; None: unscorable, or left to the job's reward."""
CONFIG: FieldPath = ("spec", "workflow", "config")


class NoConfig(Model):
    """Refuses every key."""


class Workflow:
    """Base of all workflows. One object plays all episodes of a worker, many at a time."""

    Config: ClassVar[type[Model]] = NoConfig
    """The model that `spec.workflow.config` is checked against."""
    gives_rewards: ClassVar[bool] = True
    """False: `run` returns None; the job must name a reward."""

    def __init__(self, config: Any, agents: Sequence[str]) -> None:
        """`config` is a `Config`, `agents` the job's, in order. JobCodeError: roles stay empty."""
        self.config = config
        self.agents = tuple(agents)

    def needs(self) -> Iterable[Need]:
        """The fields of a task's record that it cannot do without; checked before anything runs."""
        return ()

    async def start(self) -> None:
        """Called once before the first episode: open connections, load files."""

    async def close(self) -> None:
        """Called once after the last episode."""

    async def run(self, task: Task, team: Team) -> Rewards:
        """Play one episode. The job's reward, where there is one, outranks what is returned."""
        raise NotImplementedError


class FunctionWorkflow(Workflow):
    """An `async def run(task, team)` that needs no class."""

    def __init__(self, run: Callable[[Task, Team], Awaitable[Rewards]], agents: Sequence[str]):
        super().__init__(NoConfig(), agents)
        self._run = run

    async def run(self, task: Task, team: Team) -> Rewards:
        return await self._run(task, team)


def fill_roles(
    agents: Sequence[str], roles: Mapping[str, str | None], path: FieldPath = CONFIG
) -> dict[str, str]:
    """Role -> agent: the one that the config names, else the agent of that name, else in order.

    No agent plays two roles unless the config says so. JobCodeError names roles that stay empty.
    """
    filled: dict[str, str] = {}
    for role, wanted in roles.items():
        if wanted is not None:
            check_agent(wanted, agents, (*path, role))
            filled[role] = wanted
    for role in roles:
        if role not in filled and role in agents and role not in filled.values():
            filled[role] = role
    free = [agent for agent in agents if agent not in filled.values()]
    empty = [role for role in roles if role not in filled]
    filled.update(zip(empty, free, strict=False))
    if len(empty) > len(free):
        lacking = " and ".join(empty[len(free) :])
        raise JobCodeError(
            Problem(
                ("spec", "agents"),
                f"no agent is left to be the {lacking}; the job has {', '.join(agents)}",
                f"add one, or let one play two roles in {'.'.join(map(str, path))}",
            )
        )
    return {role: filled[role] for role in roles}


def check_agent(name: str, agents: Sequence[str], path: FieldPath) -> None:
    """JobCodeError unless the job has this agent."""
    if name not in agents:
        raise JobCodeError(
            Problem(path, f"{show(name)} is no agent", one_of(agents), nearest(name, agents))
        )


class Template:
    """Text with {fields} of the task's record, checked once, filled per task."""

    def __init__(self, text: str, path: FieldPath, *extras: str) -> None:
        """`extras` are the fields that the workflow itself fills."""
        self._text = text
        try:
            names = fields_in(text)
        except TemplateError as error:
            raise JobCodeError(Problem(path, error.says, error.allowed)) from error
        self.needs = tuple(Need(name, path) for name in names if name not in extras)

    def fill(self, record: Mapping[str, Any], **extras: str) -> str:
        """JobCodeError when the record lacks a field."""
        try:
            return self._text.format_map({**record, **extras})
        except KeyError:
            raise unmet_needs(self.needs, record) from None


def field_of(record: Mapping[str, Any], need: Need) -> Any:
    """The record's field; JobCodeError when it lacks it."""
    if problem := need.unmet(record):
        raise JobCodeError(problem)
    return record[need.field]


def unmet_needs(needs: Iterable[Need], record: Mapping[str, Any]) -> JobCodeError:
    return JobCodeError(*(problem for need in needs if (problem := need.unmet(record))))
