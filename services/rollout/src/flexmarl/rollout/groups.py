"""A group on its way through the worker: what is asked for, what came of it, what is learnt.

Nothing here talks to anybody.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from flexmarl.contracts.pipeline import OverlongSpec
from flexmarl.data.tasks import Task
from flexmarl.experience.samples import GroupId, PolicySamples, TurnSpan
from flexmarl.experience.samples import Sequence as SampleSequence
from flexmarl.rollout.conversation import TokenSequence, Turn
from flexmarl.rollout.shaping import TrainedRewards


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
    min_version: int | None = None
    """The oldest that will do; None: `version` alone."""


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
    hold: bool = False
    """Keep what was learnt until its place is known."""
    final: bool = False
    """The filter does not apply."""

    @property
    def since(self) -> int:
        """No token of it may be older than this version."""
        allowed = (route.min_version for route in self.routes if route.min_version is not None)
        return min(allowed, default=0)


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
    dropped: bool = False
    """The filter wants another task; nothing was stored."""
    oldest_version: int | None = None
    """Of any token that may be trained; None: there is none."""
    resumed_turns: int = 0
    """A weight update cut them, and they went on."""
    storing: float = 0.0
    """Of the seconds, those since it was played."""


def policy_samples(
    policy: str,
    agents: Iterable[str],
    group: GroupId,
    episodes: Iterable[Played],
    overlong: OverlongSpec | None = None,
) -> PolicySamples:
    """What the policy of `agents` learns from the episodes that count; no sequence: nothing."""
    own = frozenset(agents)
    sequences: list[SampleSequence] = []
    for played in episodes:
        if not played.outcome.counts:
            continue
        rewards = TrainedRewards(played.rewards, played.turns, overlong)
        for agent, sequence in _sequences(played.turns, own):
            sequences.append(
                _sample(
                    group.sequence_id(played.number, agent, sequence.number),
                    agent,
                    played.number,
                    sequence,
                    rewards,
                )
            )
    return PolicySamples(policy, oldest_version(sequences, group.step), tuple(sequences))


def oldest_version(sequences: Iterable[SampleSequence], default: int) -> int:
    """Of any sampled token; `default` when there is none."""
    spans = (span for each in sequences for turn in each.turns for span in turn.versions)
    return min((span.version for span in spans), default=default)


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
    name: str, agent: str, episode: int, sequence: TokenSequence, rewards: TrainedRewards
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
                reward=rewards.of_turn(turn),
                truncated=turn.info.truncated,
            )
            for turn in sequence.turns
        ),
        reward=rewards.of_agent(agent),
    )
