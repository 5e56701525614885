"""Environments: a world that answers an agent's words with an observation and a reward."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pydantic import Field

from flexmarl.contracts.base import Entrypoint, Model
from flexmarl.contracts.problems import FieldPath, Problem, show
from flexmarl.data.tasks import Task
from flexmarl.rollout.plugins import JobCodeError, cannot_be_called, find, method_cannot_be_called

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class Step:
    """What one action led to."""

    observation: str
    reward: float = 0.0
    done: bool = False


class Environment(Protocol):
    """One world of one episode, made anew each time as `Environment(**config)`.

    Methods may be async. Those that aren't run in the worker's event loop and must be quick.
    """

    def reset(self, task: Task, seed: int) -> str | Awaitable[str]:
        """The first observation. `seed` decides whatever is random in this episode."""

    def step(self, text: str) -> Step | Awaitable[Step]:
        """What the agent's words lead to."""


class EnvironmentChoice(Model):
    """An environment by name or entry point, as part of a workflow's configuration."""

    name: str | None = None
    entrypoint: Entrypoint | None = None
    config: dict[str, Any] = Field(default_factory=dict)


class EnvironmentFactory:
    """Makes the environment that a configuration names."""

    def __init__(self, choice: EnvironmentChoice, path: FieldPath) -> None:
        """`path` is where `choice` stands in the job file; JobCodeError."""
        self._config = choice.config
        self._make = find("environment", choice.name, choice.entrypoint, {}, path)
        field = "entrypoint" if choice.entrypoint else "name"
        value = show(choice.entrypoint or choice.name)
        if refusal := _no_environment(self._make):
            raise JobCodeError(
                Problem(
                    (*path, field),
                    f"{value} is no environment: {refusal}",
                    "a class with reset(task, seed) and step(text)",
                )
            )
        if refusal := cannot_be_called(self._make, **choice.config):
            where = (*path, "config") if choice.config else (*path, field)
            raise JobCodeError(Problem(where, f"{value} does not take this config: {refusal}"))

    def make(self) -> Environment:
        made: Environment = self._make(**self._config)
        return made


def _no_environment(make: Any) -> str:
    """What keeps the class from being used; empty: nothing, as far as can be told of a factory."""
    if not callable(make):
        return "it cannot be called"
    if inspect.isclass(make):
        for name, arguments in (("reset", ("task", 0)), ("step", ("text",))):
            if not callable(getattr(make, name, None)):
                return f"it has no method {name}"
            if refusal := method_cannot_be_called(make, name, *arguments):
                return f"its {name} cannot be called: {refusal}"
    return ""


async def settled(value: ValueT | Awaitable[ValueT]) -> ValueT:
    """The value, awaited where it has to be."""
    if inspect.isawaitable(value):
        return await value
    return value
