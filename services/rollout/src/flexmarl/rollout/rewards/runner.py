"""Calls the job's reward: built in or the user's own, sync or async, never longer than it may."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from flexmarl.contracts.job import RewardSpec
from flexmarl.contracts.problems import Problem, show
from flexmarl.data.tasks import Task
from flexmarl.rollout import border
from flexmarl.rollout.border import OverdueError
from flexmarl.rollout.episode import Episode
from flexmarl.rollout.needs import Need
from flexmarl.rollout.plugins import JobCodeError, cannot_be_called, find, is_async
from flexmarl.rollout.rewards.builtin import REWARD, REWARDS, ScorerReward
from flexmarl.rollout.rewards.errors import RewardError, RewardTimeoutError
from flexmarl.rollout.rewards.threads import DaemonThreads


class Reward(Protocol):
    """The job's reward, ready to be called."""

    def needs(self) -> Iterable[Need]:
        """The fields of a task's record that it cannot do without."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def reward(self, task: Task, episode: Episode) -> Any:
        """What the function said, unchecked; RewardTimeoutError, or whatever it raised."""


class BuiltinRunner:
    """One of ours, which keeps its own timeout."""

    def __init__(self, function: ScorerReward) -> None:
        self._function = function

    def needs(self) -> Iterable[Need]:
        return self._function.needs()

    async def start(self) -> None:
        await self._function.scorer.start()

    async def close(self) -> None:
        await self._function.scorer.close()

    async def reward(self, task: Task, episode: Episode) -> Any:
        return await self._function(task, episode)


class FunctionRunner:
    """A user's `f(task, episode, **config)`; a sync one runs in a thread.

    Not in a process of its own: it may share objects with the workflow, wait for a server beside
    many others of its kind, and is mostly too short to be worth the copy of an episode. The price:
    C code that keeps the interpreter's lock cannot be timed out, it ends the worker (`stall`).
    """

    def __init__(self, function: Callable[..., Any], config: Mapping[str, Any], timeout: float):
        self._function = partial(function, **config)
        self._is_async = is_async(called(function))
        self._timeout = timeout
        self._threads = DaemonThreads("reward")

    def needs(self) -> Iterable[Need]:
        return ()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def reward(self, task: Task, episode: Episode) -> Any:
        call = partial(self._function, task, episode)
        run = border.call if self._is_async else self._threads.run
        try:
            return await run(call, self._timeout)
        except OverdueError as error:
            raise RewardTimeoutError(
                f"the reward took more than {self._timeout} s; {error}".rstrip("; ")
            ) from error


def make_reward(spec: RewardSpec, agents: Sequence[str]) -> Reward:
    """The reward that the job names; JobCodeError."""
    found = find("reward", spec.name, spec.entrypoint, REWARDS, REWARD)
    if spec.name in REWARDS:
        return BuiltinRunner(found(spec, agents))
    field = "entrypoint" if spec.entrypoint else "name"
    value = show(spec.entrypoint or spec.name)
    if inspect.isclass(found) or not callable(found):
        raise JobCodeError(
            Problem((*REWARD, field), f"{value} is no function", "f(task, episode, **config)")
        )
    function = inspect.unwrap(called(found))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise JobCodeError(
            Problem((*REWARD, field), f"{value} is a generator", "it must return the reward")
        )
    if refusal := cannot_be_called(found, "task", "episode", **spec.config):
        raise JobCodeError(
            Problem(
                (*REWARD, "config") if spec.config else (*REWARD, field),
                f"{value} cannot be called with a task, an episode and the config: {refusal}",
            )
        )
    return FunctionRunner(found, spec.config, spec.timeout)


def called(function: Callable[..., Any]) -> Callable[..., Any]:
    """What runs when `function` is called: itself, or the `__call__` of an object."""
    if inspect.isroutine(function) or isinstance(function, partial):
        return function
    return function.__call__  # type: ignore[operator, no-any-return]


def per_agent(value: Any, agents: Sequence[str]) -> dict[str, float | None]:
    """A reward for every agent out of one for all, one per agent, or None.

    An agent that a mapping leaves out is unscorable. RewardError for what is no finite number.
    """
    if isinstance(value, Mapping):
        for name in value:
            if name not in agents:
                raise RewardError(
                    f"a reward for {name!r}, which is no agent; the job has {', '.join(agents)}"
                )
        return {agent: _number(value.get(agent), agent) for agent in agents}
    return dict.fromkeys(agents, _number(value, "all agents"))


def _number(value: Any, whose: str) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str | bytes) or not math.isfinite(number):
        raise RewardError(f"the reward for {whose} is {value!r}, not a finite number")
    return number
