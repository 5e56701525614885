"""How much older than their step the stored tokens are; a metric that counts tokens, not calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client import REGISTRY
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from flexmarl.experience.samples import PolicySamples

BUCKETS = (0, 1, 2, 3, 4, 6, 8, 12, 16)


def tokens_by_staleness(samples: PolicySamples, step: int) -> Counter[int]:
    """Versions behind `step` -> sampled tokens."""
    counted: Counter[int] = Counter()
    for sequence in samples.sequences:
        for turn in sequence.turns:
            for span in turn.versions:
                counted[step - span.version] += span.end - span.start
    return counted


class Staleness(Collector):
    """A histogram of which one observation is a token: thousands come with every group."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._counted: dict[str, Counter[int]] = {}
        registry.register(self)

    def observe(self, samples: Iterable[PolicySamples], step: int) -> None:
        for each in samples:
            counted = self._counted.setdefault(each.policy, Counter())
            counted.update(tokens_by_staleness(each, step))

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(
            "flexmarl_rollout_staleness_versions",
            "Versions between the step that a stored token is for and the one that sampled it.",
            labels=["policy"],
        )
        for policy, counted in self._counted.items():
            bounds = [
                (f"{bound:.1f}", sum(n for behind, n in counted.items() if behind <= bound))
                for bound in BUCKETS
            ]
            total = sum(behind * n for behind, n in counted.items())
            family.add_metric([policy], [*bounds, ("+Inf", counted.total())], total)
        yield family


STALENESS = Staleness()
