"""Where values go on a chart: round tick marks and linear scales; pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low..high` to `start..end` of the drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def round_range(low: float, high: float, count: int = 4) -> tuple[float, float, list[float]]:
    """Bounds around `low..high` at round numbers, and the tick marks between them."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # one value, as far as a chart can tell
        pad = abs(low) * 0.5 or 1.0
        low, high = low - pad, high + pad
    step = round_step((high - low) / count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    marks = [float(f"{index * step:.12g}") for index in range(first, last + 1)]
    return marks[0], marks[-1], marks


def round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least `least` (> 0)."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)


def step_marks(first: int, last: int, count: int = 6) -> list[int]:
    """Whole round numbers in `first..last`."""
    step = max(1, round(round_step(max(last - first, 1) / count)))
    return list(range(-(-first // step) * step, last + 1, step))


def label(value: float, marks: Sequence[float]) -> str:
    """`value` with as many digits as tell the marks apart."""
    if value == 0:
        return "0"
    size = max(abs(mark) for mark in marks)
    step = min(abs(b - a) for a, b in itertools.pairwise(marks)) if marks[1:] else size
    if size >= 1e6 or size < 1e-3:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    if size >= 1e4:
        return f"{value / 1000:g}k"
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:.{digits}f}"
