"""What a step's or an evaluation's finished groups add up to; pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from flexmarl.contracts.job import MARLJobSpec
from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.data.difficulty import Evidence, evidence


@dataclass(slots=True)
class AgentScore:
    """Sums over one agent's episodes."""

    rewards: list[float] = field(default_factory=list)
    right: int = 0
    scored: int = 0
    unscorable: int = 0
    turns: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0

    @property
    def reward(self) -> float | None:
        """Mean over the scored episodes; None without any."""
        # fsum rounds once: the mean does not depend on the order in which groups were done
        return math.fsum(self.rewards) / self.scored if self.scored else None

    @property
    def accuracy(self) -> float | None:
        return self.right / self.scored if self.scored else None

    def score(self) -> dict[str, float | int | None]:
        return {
            "reward": self.reward,
            "accuracy": self.accuracy,
            "scored": self.scored,
            "unscorable": self.unscorable,
        }


@dataclass(slots=True)
class Scores:
    """Sums over groups; `add` each once."""

    agents: dict[str, AgentScore]
    solved: float
    """An episode is right from this reward on."""
    outcomes: Counter[str] = field(default_factory=Counter)
    groups: int = 0
    forks: int = 0
    duplicates: int = 0
    first_detail: str = ""
    """Of the first episode that did not count, in its own words."""

    @classmethod
    def of(cls, spec: MARLJobSpec) -> Scores:
        return cls({agent.name: AgentScore() for agent in spec.agents}, spec.solved_reward)

    def add(self, group: rollout_pb2.GroupFinished) -> None:
        """Count one group's episodes.

        An agent that took no turn and got no reward was not part of the episode; one without a
        reward that did take part is unscorable. An episode that broke is unscorable for all.
        """
        self.groups += 1
        self.forks += group.forks
        self.duplicates += group.duplicate
        for episode in group.episodes:
            self.outcomes[episode.outcome] += 1
            if episode.outcome != "ok" and not self.first_detail:
                self.first_detail = episode.detail or episode.outcome
            for name, score in self.agents.items():
                if name in episode.agents:
                    self._count(score, episode.agents[name], episode.outcome)
                elif episode.outcome != "ok":
                    score.unscorable += 1

    def give_up(self, episodes: int, detail: str) -> None:
        """Count a group that could not be played at all."""
        self.groups += 1
        self.outcomes["given-up"] += episodes
        self.first_detail = self.first_detail or detail
        for score in self.agents.values():
            score.unscorable += episodes

    @property
    def scored(self) -> int:
        return sum(score.scored for score in self.agents.values())

    @property
    def episodes(self) -> int:
        return self.outcomes.total()

    def why_unscored(self) -> str:
        """One line that says what became of the episodes."""
        counts = ", ".join(f"{count} x {name}" for name, count in self.outcomes.most_common())
        return f"{counts or 'none was played'}" + (
            f"; the first said: {self.first_detail}" if self.first_detail else ""
        )

    def _count(self, score: AgentScore, stats: rollout_pb2.AgentStats, outcome: str) -> None:
        score.turns += stats.turns
        score.prompt_tokens += stats.prompt_tokens
        score.sampled_tokens += stats.sampled_tokens
        if stats.HasField("reward"):
            score.scored += 1
            score.rewards.append(stats.reward)
            score.right += stats.reward >= self.solved
        elif stats.turns or outcome != "ok":
            score.unscorable += 1


def solved(group: rollout_pb2.GroupFinished, reward: float) -> Evidence:
    """Of each agent that had a scored episode in the group; right from `reward` on."""
    return evidence(
        (
            (agent, stats.reward)
            for episode in group.episodes
            for agent, stats in episode.agents.items()
            if stats.HasField("reward")
        ),
        reward,
    )


def tokens(group: rollout_pb2.GroupFinished) -> dict[str, int]:
    """Prompt and sampled tokens of each agent in the group."""
    sums: Counter[str] = Counter()
    for episode in group.episodes:
        for agent, stats in episode.agents.items():
            sums[agent] += stats.prompt_tokens + stats.sampled_tokens
    return dict(sorted(sums.items()))


def mean_of(values: list[float | None]) -> float | None:
    """Mean of those that are not None; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def of_policy(
    agents: Mapping[str, Mapping[str, float | None]], names: list[str], what: str
) -> float | None:
    """Mean of `what` over the agents `names` of one policy, out of a metrics or evals line."""
    return mean_of([agents[name].get(what) for name in names if name in agents])
