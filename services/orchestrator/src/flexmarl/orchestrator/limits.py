"""Every bound of the orchestrator in one place, in seconds unless it says otherwise."""

import math
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Limits:
    """The defaults are for real jobs; tests shorten them."""

    start: float = 600
    """Until every service has to be healthy."""
    unreachable: float = 300
    """How long one service may stay away before the job fails; its supervisor may fail it first."""
    store: float = 120
    """How long the experience service, or its store, may stay away before this process ends and is
    started again."""
    worked: float = 60
    """A call that lasted this long before it failed is no sign that its server was away."""
    short_call: float = 10
    bind: float = 3600
    """Includes fetching, building and warm-starting a model."""
    load: float = 600
    save: float = 3600
    train_step: float = 86400
    """It lasts as long as the groups of its step are played."""
    train_tail: float = 3600
    """From the last group's end to the trained version."""
    group: float = 86400
    """It lasts as long as its rewards wait for those of others, and the store is full: how long its
    parts may take is the worker's to see to."""
    place: float = 60
    """For one group to be stored by the worker that holds it."""
    answers: float = 10
    """For answers of groups that the trainers have seen already."""
    watch: float = 0.5
    """Between two looks at an engine."""
    drain_look: float = 0.05
    """Between two looks at an engine that plays turns to their end before it serves another."""
    tell: float = 1
    """For a worker to be told who serves whom."""
    tell_every: float = 0.2
    """Between two times that workers are told, and asked what wants to be sampled."""
    confirm: float = 5
    """Between two looks at the store: are we still who we think, is a group missing."""
    full: float = 30
    """For so long groups may wait for room in the store before that is a trouble to be told."""
    resting: float = 1
    """How long a worker that failed is avoided."""
    episodes_in_flight: int = 2048
    """Per worker: what it plays at once. Groups in its queue would use up their deadline there."""
    group_tries: int = 3
    """A group that failed so often by its own fault is stored empty."""
    crashes: int = 3
    """Of one trainer call, by its own fault, in a row."""
    idle_steps: int = 10
    """Consecutive steps without any update after which the job fails."""
    used_up_steps: int = 3
    """Consecutive steps of which the filter dropped all it may after which the job fails."""
    recoveries: int = 5
    """Roll-backs and take-overs in a row without a finished step after which the job fails."""

    def where_pods_come_back(self) -> Self:
        """Those of a job on a cluster: who is away is the platform's to bring back, or to give up,
        and `activeDeadlineSeconds` says how long that may take. The job waits and says for whom."""
        return replace(self, start=math.inf, unreachable=math.inf, store=math.inf)
