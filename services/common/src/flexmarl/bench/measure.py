"""What a bench says: a value, its baseline from the same run, their ratio and how far it spread.

Machines are shared and noisy, so both sides run alternately and the ratio is taken pair by pair.
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Measure:
    name: str
    value: float
    """Median over the rounds."""
    unit: str
    baseline: float | None = None
    """Median of the plain code in the same run; none: there is nothing to compare with."""
    ratio: float | None = None
    """Median of value / baseline, pair by pair."""
    spread: tuple[float, float] | None = None
    """Smallest and largest ratio of a pair, or value where there is no baseline."""
    goal: float | None = None
    """What the ratio should reach; without a baseline what the value should stay below."""
    at_least: bool = False
    """Without a baseline: the value should reach the goal instead."""

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        if self.ratio is not None:
            return self.ratio >= self.goal
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def paired(
    name: str,
    values: Sequence[float],
    baselines: Sequence[float],
    unit: str,
    goal: float | None = None,
) -> Measure:
    """Rates of both sides, one of each per round; higher is better.

    ValueError when the rounds do not pair up or one measured nothing.
    """
    if len(values) != len(baselines) or not values or min(*values, *baselines) <= 0:
        raise ValueError(f"{name}: {len(values)} values and {len(baselines)} baselines")
    ratios = [value / base for value, base in zip(values, baselines, strict=True)]
    return Measure(
        name,
        statistics.median(values),
        unit,
        statistics.median(baselines),
        statistics.median(ratios),
        (min(ratios), max(ratios)),
        goal,
    )


def alone(name: str, values: Sequence[float], unit: str, goal: float | None = None) -> Measure:
    """Something without a baseline; lower is better."""
    return Measure(
        name,
        statistics.median(values),
        unit,
        spread=(min(values), max(values)),
        goal=goal,
    )


def higher(name: str, values: Sequence[float], unit: str, goal: float | None = None) -> Measure:
    """Something without a baseline; higher is better."""
    return replace(alone(name, values, unit, goal), at_least=True)


async def alternate(
    rounds: int,
    subject: Callable[[], Awaitable[float]],
    baseline: Callable[[], Awaitable[float]],
) -> tuple[list[float], list[float]]:
    """Run both `rounds` times in turn after one uncounted warm-up of each."""
    values: list[float] = []
    baselines: list[float] = []
    for number in range(rounds + 1):
        one, other = await subject(), await baseline()
        if number:
            values.append(one)
            baselines.append(other)
    return values, baselines


def machine() -> str:
    """The machine in words: processor, cores, Python."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return (
        f"{len(models) or 1} x {models[0] if models else name}, Python {platform.python_version()}"
    )


def as_json(bench: str, measures: Sequence[Measure]) -> str:
    """The machine-readable form; one schema for every bench."""
    rows = []
    for measure in measures:
        row = asdict(measure) | {"met": measure.met}
        del row["at_least"]
        rows.append(row)
    return json.dumps(
        {"bench": bench, "machine": machine(), "version": version("flexmarl"), "measures": rows},
        indent=2,
    )


_BOUNDS = {False: "<= {:g}", True: ">= {:g}"}


def as_table(bench: str, measures: Sequence[Measure]) -> Table:
    table = Table(title=f"flexmarl bench {bench}", caption=machine())
    table.add_column("measure")
    for column in ("value", "baseline", "ratio", "spread", "goal"):
        table.add_column(column, justify="right")
    table.add_column("met")
    for measure in measures:
        low_high = "" if measure.spread is None else "{:.2f} - {:.2f}".format(*measure.spread)
        form = ">= {:g}x" if measure.ratio is not None else _BOUNDS[measure.at_least]
        bound = form.format(measure.goal or 0)
        table.add_row(
            measure.name,
            f"{measure.value:,.4g} {measure.unit}",
            "" if measure.baseline is None else f"{measure.baseline:,.4g} {measure.unit}",
            "" if measure.ratio is None else f"{measure.ratio:.2f}x",
            low_high,
            "" if measure.goal is None else bound,
            {True: "yes", False: "NO", None: ""}[measure.met],
        )
    return table
