"""Rewards by name: a scorer applied to what one agent said last, the same for the whole team."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pydantic import create_model

from flexmarl.contracts.job import RewardSpec
from flexmarl.contracts.problems import FieldPath, Problem, nearest, one_of, show
from flexmarl.data.tasks import Task
from flexmarl.rollout.episode import Episode
from flexmarl.rollout.needs import Need
from flexmarl.rollout.plugins import JobCodeError, configured
from flexmarl.rollout.rewards.scorers import SCORERS, Scorer

REWARD: FieldPath = ("spec", "reward")


class ScorerReward:
    """`config.agent` names whose last reply is scored; by default that of the last to speak."""

    def __init__(self, scorer: Scorer, agent: str | None) -> None:
        self.scorer, self._agent = scorer, agent

    def needs(self) -> Iterable[Need]:
        return self.scorer.needs()

    async def __call__(self, task: Task, episode: Episode) -> float | None:
        """None when the agent said nothing."""
        turn = episode.turns[-1] if self._agent is None else episode.last(self._agent)
        return None if turn is None else await self.scorer.score(turn.text, task.record)


BuiltinReward = Callable[[RewardSpec, Sequence[str]], ScorerReward]


def _builtin(kind: type[Scorer]) -> BuiltinReward:
    config_model = create_model(
        f"{kind.Config.__name__}WithAgent", __base__=kind.Config, agent=(str | None, None)
    )

    def make(spec: RewardSpec, agents: Sequence[str]) -> ScorerReward:
        path = (*REWARD, "config")
        config = configured(config_model, spec.config, path)
        agent: str | None = config.agent  # type: ignore[attr-defined]
        if agent is not None and agent not in agents:
            raise JobCodeError(
                Problem(
                    (*path, "agent"),
                    f"{show(agent)} is no agent",
                    one_of(agents),
                    nearest(agent, agents),
                )
            )
        return ScorerReward(kind(config, path, spec.timeout), agent)

    return make


REWARDS: dict[str, BuiltinReward] = {name: _builtin(kind) for name, kind in SCORERS.items()}
