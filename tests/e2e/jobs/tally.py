"""What befell the runs of the long crash matrix, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .strikes import Strike
from .tormented import Struck


@dataclass
class Run:
    number: int
    strikes: list[Strike]
    """Meant for it."""
    struck: list[Struck] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    begun: bool = False
    cut: bool = False
    """Stopped before it could be judged."""

    @property
    def left(self) -> list[Strike]:
        """What did not befall it. One that went wrong is not repeated."""
        return self.strikes[max(len(self.struck), bool(self.wrong)) :]


@dataclass
class Tally:
    """Of one campaign."""

    title: str
    runs: list[Run] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """With the undisturbed run."""
    left: list[Strike] = field(default_factory=list)
    """Strikes that befell nobody yet."""

    @property
    def deviations(self) -> list[str]:
        runs = [
            f"{self.title}, run {run.number}: {text}" for run in self.runs for text in run.wrong
        ]
        return self.wrong + runs


def told(tallies: Sequence[Tally]) -> str:
    """In one line."""
    fell = Counter(one.name for tally in tallies for run in tally.runs for one in list(run.struck))
    wrong = sum(len(tally.deviations) for tally in tallies)
    each = ", ".join(f"{name} {count}" for name, count in sorted(fell.items()))
    return f"{fell.total()} strikes in all ({each}), {wrong} deviations"


def table(title: str, tallies: Sequence[Tally]) -> str:
    runs = [run for tally in tallies for run in tally.runs if run.begun]
    wrong = [text for tally in tallies for text in tally.deviations]
    rows = [
        f"\n{title}: {len(runs)} runs, {len(wrong)} deviations",
        f"{'what':26}{'times':>6}{'runs':>6}{'slowest recovery':>18}  while",
    ]
    for name in sorted({one.name for run in runs for one in run.struck}):
        by_run = [[one for one in run.struck if one.name == name] for run in runs]
        struck = [one for each in by_run for one in each]
        measured = [one.recovery for one in struck if one.recovery is not None]
        slowest = f"{max(measured):.1f} s" if measured else "-"
        phases = Counter(one.phase for one in struck).most_common()
        during = ", ".join(f"{phase} {count}" for phase, count in phases)
        rows.append(f"{name:26}{len(struck):6}{sum(map(bool, by_run)):6}{slowest:>18}  {during}")
    return "\n".join(rows + [f"DEVIATION {text}" for text in wrong])


def left_out(tallies: Sequence[Tally]) -> str:
    """What there was no time for."""
    rows = [f"cut: {one.title}, run {run.number}" for one in tallies for run in one.runs if run.cut]
    for tally in tallies:
        if tally.left:
            each = Counter(strike.name for strike in tally.left)
            names = ", ".join(f"{name} {count}" for name, count in sorted(each.items()))
            rows.append(f"left out of {tally.title}: {each.total()} strikes ({names})")
    return "\n".join(rows or ["nothing was left out"])
