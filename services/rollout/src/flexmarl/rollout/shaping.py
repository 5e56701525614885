"""Rewards as they are trained: what is reported, less a penalty for turns that come near their end.

Overlong shaping (DAPO, arXiv 2503.14476): nothing up to `buffer` tokens below a turn's maxTokens,
from there a penalty that grows linearly, all of it at maxTokens, or where the model's context ended
a turn before. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flexmarl.contracts.pipeline import OverlongSpec
from flexmarl.rollout.conversation import Turn


def overlong_penalty(tokens: int, max_tokens: int, overlong: OverlongSpec) -> float:
    """What a turn of so many sampled tokens loses, from 0 to `overlong.penalty`.

    A turn that the program allows less than `buffer` tokens has as many as it is allowed.
    """
    free = max(max_tokens - overlong.buffer, 0)
    share = (tokens - free) / (max_tokens - free)
    return overlong.penalty * min(max(share, 0.0), 1.0)


class TrainedRewards:
    """The rewards of one episode as they are trained; without `overlong` those that are reported.

    A turn with a reward of its own pays for itself; an agent's reward, which judges its other
    turns, for the worst of those. What has no reward gets none.
    """

    def __init__(
        self,
        rewards: Mapping[str, float | None],
        turns: Iterable[Turn],
        overlong: OverlongSpec | None,
    ) -> None:
        self._rewards, self._overlong = rewards, overlong
        self._worst: dict[str, float] = {}
        for turn in turns:
            if turn.reply.reward is None:
                agent = turn.info.agent
                self._worst[agent] = max(self._worst.get(agent, 0.0), self._penalty(turn))

    def of_agent(self, agent: str) -> float | None:
        reward = self._rewards.get(agent)
        return None if reward is None else reward - self._worst.get(agent, 0.0)

    def of_turn(self, turn: Turn) -> float | None:
        """The turn's own."""
        reward = turn.reply.reward
        return None if reward is None else reward - self._penalty(turn)

    def _penalty(self, turn: Turn) -> float:
        if self._overlong is None:
            return 0.0
        if turn.reply.finish_reason == "length":  # the context may have ended before maxTokens
            return self._overlong.penalty
        return overlong_penalty(turn.sampled_tokens, turn.info.max_tokens, self._overlong)
