"""A group on its way through the worker: what is asked for, what came of it, what is learnt.

Nothing here talks to anybody.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from flexmarl.data.tasks import Task
from flexmarl.experience.samples import GroupId, PolicySamples, TurnSpan
from flexmarl.experience.samples import Sequence as SampleSequence
from flexmarl.rollout.conversation import TokenSequence, Turn


class Outcome(StrEnum):
    """How an episode ended; closed, so that it can label a metric."""

    OK = "ok"
    UNSCORABLE = "unscorable"
    """Nobody got a reward."""
    NO_TURNS = "no-turns"
    """No policy that could learn from it took a turn."""
    WORKFLOW_ERROR = "workflow-error"
    TIMEOUT = "timeout"
    REWARD_ERROR = "reward-error"
    REWARD_TIMEOUT = "reward-timeout"

    @property
    def counts(self) -> bool:
        """Whether anything may be learnt from it; the others are excluded, never worth 0."""
        return self in (Outcome.OK, Outcome.UNSCORABLE)


@dataclass(frozen=True, slots=True)
class RouteTo:
    """Which version of a policy to sample from, and where."""

    policy: str
    version: int
    engines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """What the orchestrator asks for."""

    id: GroupId
    task: Task
    episodes: int
    seed: int
    routes: tuple[RouteTo, ...]
    train: bool
    """Store what was learnt; else it is an evaluation."""
    transcripts: bool


@dataclass(slots=True)
class AgentTally:
    turns: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """One episode after its end."""

    number: int
    outcome: Outcome
    detail: str
    """The error's own words."""
    turns: Sequence[Turn]
    rewards: dict[str, float | None]
    """Per agent; empty unless the episode counts."""
    forks: int

    def tallies(self) -> dict[str, AgentTally]:
        """Of the agents that took a turn or got a reward."""
        tallies: dict[str, AgentTally] = {}
        for turn in self.turns:
            tally = tallies.setdefault(turn.info.agent, AgentTally())
            tally.turns += 1
            tally.prompt_tokens += turn.prompt_tokens
            tally.sampled_tokens += turn.sampled_tokens
        for agent, reward in self.rewards.items():
            if reward is not None:
                tallies.setdefault(agent, AgentTally()).reward = reward
        return tallies

    def transcript(self) -> str:
        """JSON: {"turns": [{"agent", "messages", "text", "finish_reason", "tokens"}]}."""
        turns = [
            {
                "agent": turn.info.agent,
                "messages": turn.messages,
                "text": turn.text,
                "finish_reason": turn.reply.finish_reason,
                "tokens": turn.sampled_tokens,
            }
            for turn in self.turns
        ]
        return json.dumps({"turns": turns}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class GroupResult:
    id: GroupId
    duplicate: bool
    """It was stored before; this play changed nothing."""
    episodes: tuple[Played, ...]
    forks: int
    seconds: float
    transcripts: tuple[str, ...] = field(default=())
    """One per episode when asked for."""


def policy_samples(
    route: RouteTo, agents: Iterable[str], group: GroupId, episodes: Iterable[Played]
) -> PolicySamples:
    """What the policy of `agents` learns from the episodes that count; no sequence: nothing."""
    own = frozenset(agents)
    sequences: list[SampleSequence] = []
    for played in episodes:
        if not played.outcome.counts:
            continue
        for agent, sequence in _sequences(played.turns, own):
            sequences.append(
                _sample(
                    group.sequence_id(played.number, agent, sequence.number),
                    agent,
                    played.number,
                    sequence,
                    played.rewards.get(agent),
                )
            )
    return PolicySamples(route.policy, route.version, tuple(sequences))


def _sequences(
    turns: Iterable[Turn], agents: frozenset[str]
) -> Iterable[tuple[str, TokenSequence]]:
    """Each sequence once, with its agent, in the order of the turns that started them."""
    seen: dict[int, tuple[str, TokenSequence]] = {}
    for turn in turns:
        if turn.sequence is not None and turn.info.agent in agents:
            seen.setdefault(id(turn.sequence), (turn.info.agent, turn.sequence))
    return seen.values()


def _sample(
    name: str, agent: str, episode: int, sequence: TokenSequence, reward: float | None
) -> SampleSequence:
    mask = np.zeros(sequence.length, dtype=np.uint8)
    logprobs = np.zeros(sequence.length, dtype=np.float32)
    for turn in sequence.turns:
        mask[turn.start : turn.end] = 1
        logprobs[turn.start : turn.end] = turn.reply.logprobs
    return SampleSequence(
        id=name,
        agent=agent,
        episode=episode,
        token_ids=np.concatenate(sequence.pieces),
        loss_mask=mask,
        logprobs=logprobs,
        turns=tuple(
            TurnSpan(
                start=turn.start,
                end=turn.end,
                versions=turn.versions,
                finish_reason=turn.reply.finish_reason,
                temperature=turn.info.temperature,
                reward=turn.reply.reward,
            )
            for turn in sequence.turns
        ),
        reward=reward,
    )
