"""Which finished groups are worth training on: built in, or the user's own `keep(group)`.

A group that is not kept is played again with another task; nothing of it is stored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog

from flexmarl.contracts.job import RewardSpec
from flexmarl.contracts.pipeline import FilterSpec
from flexmarl.contracts.problems import FieldPath, Problem, show
from flexmarl.data.contrast import distances
from flexmarl.data.tasks import Task
from flexmarl.experience import samples as experience
from flexmarl.experience.samples import PolicySamples
from flexmarl.rollout import border
from flexmarl.rollout.groups import Played
from flexmarl.rollout.plugins import JobCodeError, cannot_be_called, imported, is_async
from flexmarl.rollout.rewards.runner import called
from flexmarl.rollout.rewards.threads import DaemonThreads

FILTER: FieldPath = ("spec", "pipeline", "filter")
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PlayedGroup:
    """All episodes of one task, as a filter sees them."""

    task: Task
    episodes: tuple[Played, ...]
    samples: tuple[PolicySamples, ...]
    """What each trained policy would learn, the trained rewards in it."""

    def rewards(self, agent: str) -> list[float | None]:
        """One per episode, as reported; None: unscorable."""
        return [played.rewards.get(agent) for played in self.episodes]


class Filter(Protocol):
    async def keep(self, group: PlayedGroup) -> bool: ...


class ContrastFilter:
    """Keeps groups from which some policy can learn."""

    async def keep(self, group: PlayedGroup) -> bool:
        return any(has_contrast(each.sequences) for each in group.samples)


class FunctionFilter:
    """A user's `keep(group) -> bool`; a sync one runs in a thread. A broken one keeps the group."""

    def __init__(self, function: Callable[[PlayedGroup], Any], timeout: float) -> None:
        self._function, self._timeout = function, timeout
        self._is_async = is_async(called(function))
        self._threads = DaemonThreads("filter")
        self._told = False

    async def keep(self, group: PlayedGroup) -> bool:
        try:
            kept = await self._called(group)
            if not isinstance(kept, bool):
                with border.exits():  # of its text
                    raise TypeError(f"a filter returns True or False, not {kept!r}")
            return kept
        except Exception as error:  # the border to the user's code: anything may come out of it
            if not self._told:
                self._told = True
                log.error("filter failed; such groups are kept", exc_info=error)
            return True

    async def _called(self, group: PlayedGroup) -> Any:
        run = border.call if self._is_async else self._threads.run
        return await run(partial(self._function, group), self._timeout)


def make_filter(spec: FilterSpec, timeout: float) -> Filter:
    """The filter that the job names; JobCodeError. `timeout` is of one call, in seconds."""
    if spec.entrypoint is None:
        return ContrastFilter()
    path = (*FILTER, "entrypoint")
    found = imported(spec.entrypoint, path)
    if refusal := _no_filter(found):
        raise JobCodeError(Problem(path, f"{show(spec.entrypoint)} {refusal}", "keep(group)"))
    return FunctionFilter(found, timeout)


def filter_seconds(reward: RewardSpec | None) -> float:
    """How long one call may take: as long as the reward."""
    return (reward or RewardSpec()).timeout


def _no_filter(found: Any) -> str:
    if inspect.isclass(found) or not callable(found):
        return "is no function"
    function = inspect.unwrap(called(found))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "is a generator; it must return True or False"
    refusal = cannot_be_called(found, "group")
    return f"cannot be called with a group: {refusal}" if refusal else ""


def has_contrast(sequences: Sequence[experience.Sequence]) -> bool:
    """Whether a policy gets any advantage out of its sequences of one group.

    As the trainer has it: an agent is compared with itself, over its scored episodes, and turns
    with rewards of their own over all of those.
    """
    episodes: dict[str, dict[int, float]] = {}
    judged: set[tuple[str, int]] = set()  # by the reward of its episode
    turns: dict[str, list[tuple[float, bool]]] = {}  # its own reward, whether it has tokens
    for sequence in sequences:
        agent, episode = sequence.agent, sequence.episode
        if sequence.reward is not None:
            episodes.setdefault(agent, {})[episode] = sequence.reward
        for turn in sequence.turns:
            sampled = turn.end > turn.start
            if turn.reward is not None:
                turns.setdefault(agent, []).append((turn.reward, sampled))
            elif sampled:
                judged.add((agent, episode))
    return any(
        distance and (agent, episode) in judged
        for agent, scored in episodes.items()
        for episode, distance in zip(scored, distances([*scored.values()]), strict=True)
    ) or any(
        distance and sampled
        for own in turns.values()
        for (_, sampled), distance in zip(own, distances([each for each, _ in own]), strict=True)
    )
