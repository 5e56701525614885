"""What is counted of the groups that were played, and told of those that teach nothing."""

from __future__ import annotations

from collections import Counter as Tally

import structlog
from prometheus_client import Counter

from flexmarl.experience.samples import PolicySamples
from flexmarl.rollout.groups import GroupOrder, Outcome, Played
from flexmarl.rollout.once import Once

EPISODES = Counter("flexmarl_rollout_episodes_total", "Episodes played.", ["outcome"])
TURNS = Counter("flexmarl_rollout_turns_total", "Turns taken in finished episodes.")
TOKENS = Counter("flexmarl_rollout_tokens_total", "Tokens of finished episodes.", ["kind"])
FORKS = Counter("flexmarl_rollout_forks_total", "Histories that continue a turn in changed words.")
RESUMED = Counter("flexmarl_rollout_resumed_turns_total", "Turns that a weight update did not end.")
EMPTY = Counter(
    "flexmarl_rollout_empty_markers_total", "Groups that a policy learns nothing from.", ["policy"]
)

log = structlog.get_logger()


class Told:
    """Tasks and policies that teach nothing, each once."""

    def __init__(self) -> None:
        self._once = Once()

    def of_nothing(
        self, order: GroupOrder, episodes: tuple[Played, ...], samples: tuple[PolicySamples, ...]
    ) -> None:
        """Tasks of which no episode can be scored, and policies that take no turn in good ones."""
        routed = {route.policy for route in order.routes}
        for each in samples:
            if not each.sequences and each.policy in routed:
                EMPTY.labels(each.policy).inc()
                if any(played.outcome.counts for played in episodes):
                    self._tell("a policy took no turn", each.policy)
        if not any(played.outcome is Outcome.OK for played in episodes):
            outcomes = Tally(str(played.outcome) for played in episodes)
            self._tell("no episode of a task counts", order.task.id, outcomes=dict(outcomes))

    def _tell(self, event: str, id_: str, **facts: object) -> None:
        if self._once.first((event, id_)):
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
