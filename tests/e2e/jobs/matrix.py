"""The crash matrix in its long form: `python -m tests.e2e.jobs.matrix`, or `make matrix`.

Jobs are struck many times each, at seeded random moments, until every kind of process was killed so
often; every one must end as the run that nothing disturbed. Exits with 1 on any deviation.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .running import Job
from .specs import Spec, enduring, one_after_the_other, replicated, selecting, stale
from .strikes import FROZEN, KILLS, OTHERS, POD_LOST, SECOND_LOST, STORE_LOST, Strike
from .tormented import Struck, deviations, stale_deviations, torment

PER_RUN = 60
LONGEST = 900.0
"""Seconds for what is left of a run."""
STALENESS = 2
Compare = Callable[[Job, Job], list[str]]


@dataclass
class Tally:
    """Of one campaign."""

    title: str
    struck: dict[str, list[Struck]] = field(default_factory=lambda: defaultdict(list))
    runs: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    wrong: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, struck: Iterable[Struck]) -> None:
        for each in struck:
            self.struck[each.name].append(each)
            self.runs[each.name].add(self.count)
        self.count += 1

    def print(self) -> None:
        print(f"\n{self.title}: {self.count} runs, {len(self.wrong)} deviations")
        print(f"{'what':26}{'times':>6}{'runs':>6}{'slowest recovery':>18}  while")
        for name, all_of_it in self.struck.items():
            measured = [each.recovery for each in all_of_it if each.recovery is not None]
            slowest = f"{max(measured):.1f} s" if measured else "-"
            phases = Counter(each.phase for each in all_of_it)
            told = ", ".join(f"{phase} {count}" for phase, count in phases.most_common())
            runs = len(self.runs[name])
            print(f"{name:26}{len(all_of_it):6}{runs:6}{slowest:>18}  {told}")
        for text in self.wrong:
            print(f"DEVIATION {text}")
        sys.stdout.flush()


@dataclass(frozen=True)
class Campaign:
    title: str
    spec: Spec
    strikes: list[Strike]
    compare: Compare


def campaign(plan: Campaign, seed: int, folder: Path) -> Tally:
    """Undisturbed once, then as many runs as the strikes take: each strike befalls one of them."""
    chance, tally = random.Random(f"{seed} {plan.title}"), Tally(plan.title)
    left = chance.sample(plan.strikes, len(plan.strikes))
    same = plan.compare is deviations
    spec = one_after_the_other(plan.spec) if same else plan.spec
    reference = make(folder, plan.title, "undisturbed", spec)
    try:
        reference.complete(seconds=LONGEST)
        while left:
            name = f"run {tally.count}"
            # Odd runs have more processes of a kind: the outcome may not depend on that.
            spec = replicated(plan.spec) if tally.count % 2 else plan.spec
            job = make(folder, plan.title, name, spec)
            try:
                struck, wrong = disturbed(job, left[:PER_RUN], chance, reference, plan.compare)
            finally:
                job.clean_up()
            if not struck and not wrong:
                wrong = ["it ended before it was struck"]
            # What did not befall this one befalls the next. One that went wrong is not repeated.
            left = left[max(len(struck), bool(wrong)) :]
            tally.add(struck)
            tally.wrong += [f"{plan.title}, {name}: {text}" for text in wrong]
            outcome = "; ".join(wrong) or "as if undisturbed"
            print(f"{plan.title}, {name}: {len(struck)} strikes, {outcome}", flush=True)
            if not wrong:
                shutil.rmtree(job.directory)
    finally:
        reference.clean_up()
    return tally


def make(folder: Path, title: str, name: str, spec: Spec) -> Job:
    directory = folder / title.replace(" ", "-") / name.replace(" ", "-")
    directory.mkdir(parents=True)
    return Job(directory, spec, {})


def disturbed(
    job: Job, strikes: list[Strike], chance: random.Random, reference: Job, compare: Compare
) -> tuple[list[Struck], list[str]]:
    """One run; what was done to it and what is wrong with its outcome."""
    struck: list[Struck] = []
    job.start()
    try:
        struck = torment(job, strikes, chance)
        code, output = job.finish(LONGEST)
    except AssertionError as error:
        return struck, [f"{error}: {job.progress()}, see {job.directory}"]
    if code:
        return struck, [f"exit code {code}: {output[-600:]}; see {job.directory}"]
    return struck, compare(job, reference)


def campaigns(kills: int) -> list[Campaign]:
    def some(share: float) -> int:
        return max(1, round(kills * share))

    scripted = [
        *(KILLS * kills),
        # Of those that share memory, and of the store: the pods that hold more than a process.
        *([POD_LOST, STORE_LOST] * kills),
        *([SECOND_LOST] * some(0.2)),
        *([FROZEN] * some(0.4)),
    ]
    few = KILLS * some(0.04) + OTHERS * some(0.04)

    def within_bound(job: Job, reference: Job) -> list[str]:
        return stale_deviations(job, reference, STALENESS)

    fixed, partial = stale(40, STALENESS), stale(40, STALENESS, partialRollout=True)
    # Groups that are kept for replay are not there again where the store lost them.
    kept = [each for each in few if each not in (STORE_LOST, SECOND_LOST)]
    models = KILLS * some(0.04) + [POD_LOST, POD_LOST, STORE_LOST, SECOND_LOST] + KILLS[:2]
    return [
        Campaign("transformers", enduring(30, engine="transformers"), models, deviations),
        Campaign("bounded staleness", fixed, few, within_bound),
        Campaign("partial rollouts", partial, few, within_bound),
        Campaign("selection", selecting(enduring(60)), kept, deviations),
        Campaign("scripted", enduring(120), scripted, deviations),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills what a job consists of, again and again.")
    parser.add_argument("--kills", type=int, default=50, help="per kind of process, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="campaigns whose title begins so")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    folder, started = Path(tempfile.mkdtemp(prefix="flexmarl-matrix-")), time.monotonic()
    tallies = []
    for plan in campaigns(options.kills):
        if plan.title.startswith(options.only):
            tallies.append(campaign(plan, options.seed, folder))
            tallies[-1].print()
    wrong = sum(len(tally.wrong) for tally in tallies)
    strikes = sum(len(each) for tally in tallies for each in tally.struck.values())
    minutes = (time.monotonic() - started) / 60
    print(f"\n{strikes} strikes, {wrong} deviations, {minutes:.1f} minutes, seed {options.seed}")
    if wrong:
        print(f"What is left of the runs that deviate: {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
