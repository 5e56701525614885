"""What a group's rewards tell of each other, as filter and trainer have it; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

AGREEMENT = 1e-9
"""Rewards closer than this, relative to the largest, are one reward: rounding is no signal."""


def distances(rewards: Sequence[float]) -> list[float]:
    """How far each reward is from their mean; all 0 where they agree, as a single one does."""
    low, high = min(rewards, default=0.0), max(rewards, default=0.0)
    if high - low <= AGREEMENT * max(1.0, abs(low), abs(high)):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]
