from __future__ import annotations

import numpy as np
from prometheus_client import CollectorRegistry

from flexmarl.experience.samples import PolicySamples, Sequence, TurnSpan, VersionSpan
from flexmarl.rollout.staleness import Staleness, tokens_by_staleness

NAME = "flexmarl_rollout_staleness_versions"


def samples(policy: str, *spans: tuple[int, int, int]) -> PolicySamples:
    nothing = np.zeros(0)
    turn = TurnSpan(0, 9, tuple(VersionSpan(*span) for span in spans), "stop", 1.0)
    sequence = Sequence(
        "s",
        "a",
        0,
        nothing.astype(np.int32),
        nothing.astype(np.uint8),
        nothing.astype(np.float32),
        (turn,),
    )
    return PolicySamples(policy, 0, (sequence,))


def test_each_token_counts_by_its_own_version() -> None:
    assert tokens_by_staleness(samples("a", (3, 0, 4), (5, 4, 9)), 5) == {2: 4, 0: 5}


def test_the_histogram_counts_tokens_per_policy() -> None:
    registry = CollectorRegistry()
    metric = Staleness(registry)
    metric.observe([samples("a", (3, 0, 4), (5, 4, 9)), PolicySamples("b", 5)], 5)
    metric.observe([samples("a", (5, 0, 1))], 5)

    def value(suffix: str, **labels: str) -> float | None:
        return registry.get_sample_value(NAME + suffix, labels)

    assert value("_bucket", policy="a", le="0.0") == 6
    assert value("_bucket", policy="a", le="1.0") == 6
    assert value("_bucket", policy="a", le="2.0") == 10
    assert value("_bucket", policy="a", le="+Inf") == value("_count", policy="a") == 10
    assert value("_sum", policy="a") == 8
    assert value("_count", policy="b") == 0
