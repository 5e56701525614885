"""What is counted of the groups that were played, and told of those that teach nothing."""

from __future__ import annotations

from collections import Counter as Tally

import structlog
from prometheus_client import Counter

from flexmarl.experience.samples import PolicySamples
from flexmarl.rollout.groups import GroupOrder, Outcome, Played

EPISODES = Counter("flexmarl_rollout_episodes_total", "Episodes played.", ["outcome"])
TURNS = Counter("flexmarl_rollout_turns_total", "Turns taken in finished episodes.")
TOKENS = Counter("flexmarl_rollout_tokens_total", "Tokens of finished episodes.", ["kind"])
FORKS = Counter("flexmarl_rollout_forks_total", "Histories that continue a turn in changed words.")
RESUMED = Counter("flexmarl_rollout_resumed_turns_total", "Turns that a weight update did not end.")
EMPTY = Counter(
    "flexmarl_rollout_empty_markers_total", "Groups that a policy learns nothing from.", ["policy"]
)

MOST_TOLD = 256
"""Tasks and policies that teach nothing and are told of, each once."""

log = structlog.get_logger()


class Told:
    """What has been said already."""

    def __init__(self) -> None:
        self._ids: set[tuple[str, str]] = set()

    def of_nothing(
        self, order: GroupOrder, episodes: tuple[Played, ...], samples: tuple[PolicySamples, ...]
    ) -> None:
        """Tasks of which no episode can be scored, and policies that take no turn in good ones."""
        routed = {route.policy for route in order.routes}
        for each in samples:
            if not each.sequences and each.policy in routed:
                EMPTY.labels(each.policy).inc()
                if any(played.outcome.counts for played in episodes):
                    self._once("a policy took no turn", each.policy)
        if not any(played.outcome is Outcome.OK for played in episodes):
            outcomes = Tally(str(played.outcome) for played in episodes)
            self._once("no episode of a task counts", order.task.id, outcomes=dict(outcomes))

    def _once(self, event: str, id_: str, **facts: object) -> None:
        """Say it the first time for what goes by `id_`."""
        if (event, id_) not in self._ids and len(self._ids) < MOST_TOLD:
            self._ids.add((event, id_))
            log.warning(event, id=id_, **facts)


def count(episodes: tuple[Played, ...]) -> None:
    turns = prompt = sampled = forks = resumed = 0
    for played in episodes:
        EPISODES.labels(played.outcome).inc()
        forks += played.forks
        turns += len(played.turns)
        for turn in played.turns:
            prompt += turn.prompt_tokens
            sampled += turn.sampled_tokens
            resumed += turn.resumed
    TURNS.inc(turns)
    TOKENS.labels("prompt").inc(prompt)
    TOKENS.labels("sampled").inc(sampled)
    FORKS.inc(forks)
    RESUMED.inc(resumed)
