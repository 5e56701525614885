"""The crash matrix in its long form: `python -m tests.e2e.jobs.matrix`, or `make matrix`.

Jobs are struck many times each, at seeded random moments, until every kind of process was killed so
often; every one must end as the run that nothing disturbed. Exits with 1 on any deviation. What a
run is struck with follows from the seed and its number, however many run at once.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from .campaigns import Campaign, campaigns
from .running import Job
from .specs import Spec
from .strikes import Strike
from .tally import Run, Tally, left_out, table, told
from .tormented import torment

PER_RUN = 30
LONGEST = 900.0
"""Seconds for what is left of a run."""
TELL_SECONDS = 30.0
"""Between two words on how far it is."""


def hands(strikes: Sequence[Strike], chance: random.Random) -> list[list[Strike]]:
    """Dealt out evenly, no more than `PER_RUN` to a run."""
    mixed = chance.sample(strikes, len(strikes))
    runs = -(-len(mixed) // PER_RUN)
    return [mixed[first::runs] for first in range(runs)]


class Matrix:
    """Plays campaigns, `jobs` jobs at a time; begins none after `seconds`."""

    def __init__(self, folder: Path, seed: int, jobs: int, seconds: float) -> None:
        self.tallies: list[Tally] = []
        self.stopped_by = 0
        """The signal."""
        self._folder, self._seed = folder, seed
        self._begin = time.monotonic()
        self._last = self._begin + seconds
        self._places = ThreadPoolExecutor(jobs)
        self._living: set[Job] = set()
        self._speaking = threading.Lock()

    def play(self, plans: Sequence[Campaign]) -> None:
        self.tallies = [Tally(plan.title) for plan in plans]
        with self._places, ThreadPoolExecutor(max(1, len(plans))) as each:
            all_of_them = [
                each.submit(self._campaign, plan, tally)
                for plan, tally in zip(plans, self.tallies, strict=True)
            ]
            while wait(all_of_them, TELL_SECONDS).not_done:
                self._say(f"{len(self._living)} jobs run; {told(self.tallies)}")
        for done in all_of_them:
            done.result()

    def stop(self, number: int, frame: object) -> None:
        """Nothing begins any more, and what runs ends at once."""
        self.stopped_by = number
        for job in list(self._living):
            if job.process is not None:
                job.process.kill()

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self._begin) / 60

    def _over(self) -> bool:
        return bool(self.stopped_by) or time.monotonic() > self._last

    def _say(self, text: str) -> None:
        """As a whole, whoever speaks at the same time."""
        with self._speaking:
            print(f"[{self.minutes:5.1f} min] {text}\n", end="", flush=True)

    def _campaign(self, plan: Campaign, tally: Tally) -> None:
        """Undisturbed once, then as many runs as the strikes take: each befalls one of them."""
        tally.left = list(plan.strikes)
        reference = self._places.submit(self._undisturbed, plan, tally).result()
        while reference is not None and tally.left and not self._over():
            first = len(tally.runs)
            chance = random.Random(f"{self._seed} {plan.title} dealt {first}")
            dealt = [Run(first + at, hand) for at, hand in enumerate(hands(tally.left, chance))]
            tally.runs += dealt
            for done in [self._places.submit(self._run, plan, run, reference) for run in dealt]:
                done.result()
            # What did not befall these befalls the next.
            tally.left = [strike for run in dealt for strike in run.left]
        self._say(table(tally.title, [tally]))

    def _undisturbed(self, plan: Campaign, tally: Tally) -> Job | None:
        """None: there was no time for it, or it failed."""
        if self._over():
            return None
        with self._job(plan.title, "undisturbed", plan.reference) as job:
            try:
                job.complete(seconds=LONGEST)
            except AssertionError as error:
                if not self.stopped_by:
                    tally.wrong.append(f"{plan.title}, undisturbed: {error}")
                return None
        return job

    def _run(self, plan: Campaign, run: Run, reference: Job) -> None:
        if self._over():
            return
        begin = time.monotonic()
        spec = plan.odd if run.number % 2 else plan.even
        with self._job(plan.title, f"run {run.number}", spec) as job:
            try:
                run.wrong = self._disturbed(plan, run, job, reference)
            except Exception:  # the others go on
                run.wrong = [f"{traceback.format_exc()}: {job.progress()}, see {job.directory}"]
        if self.stopped_by:
            run.wrong, run.cut = [], True
        elif not run.wrong:
            shutil.rmtree(job.directory)
        outcome = "; ".join(run.wrong) or ("cut" if run.cut else "as if undisturbed")
        fell = f"{len(run.struck)} of {len(run.strikes)} strikes fell"
        seconds = f"{time.monotonic() - begin:.0f} s"
        self._say(
            f"{plan.title}, run {run.number}: {fell}, {seconds}, {outcome}; {told(self.tallies)}"
        )

    def _disturbed(self, plan: Campaign, run: Run, job: Job, reference: Job) -> list[str]:
        """What is wrong with its outcome."""
        chance = random.Random(f"{self._seed} {plan.title} {run.number}")
        try:
            run.begun = True
            self._start(job)
            for struck in torment(job, run.strikes, chance):
                run.struck.append(struck)
            code, output = job.finish(LONGEST)
        except AssertionError as error:
            return [f"{error}: {job.progress()}, see {job.directory}"]
        if code:
            return [f"exit code {code}: {output[-600:]}; see {job.directory}"]
        if found := plan.compare(job, reference):
            return found
        return [] if run.struck else ["it ended before it was struck"]

    @contextmanager
    def _job(self, title: str, name: str, spec: Spec) -> Iterator[Job]:
        """In the block it may run."""
        directory = self._folder / title.replace(" ", "-") / name.replace(" ", "-")
        directory.mkdir(parents=True)
        job = Job(directory, spec, {})
        self._living.add(job)
        try:
            yield job
        finally:
            self._living.discard(job)
            job.clean_up()

    def _start(self, job: Job) -> None:
        process = job.start()
        if self.stopped_by:
            process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills what a job consists of, again and again.")
    parser.add_argument("--kills", type=int, default=50, help="per kind of process, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="campaigns whose title begins so")
    parser.add_argument("--jobs", type=int, default=1, help="that run at the same time")
    parser.add_argument("--minutes", type=float, default=1e9, help="no run begins after so many")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="flexmarl-matrix-"))
    matrix = Matrix(folder, options.seed, options.jobs, options.minutes * 60)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, matrix.stop)
    plans = campaigns(options.kills)
    matrix.play([plan for plan in plans if plan.title.startswith(options.only)])
    print(table("In all", matrix.tallies))
    print(left_out(matrix.tallies))
    print(f"{told(matrix.tallies)}, {matrix.minutes:.1f} minutes, seed {options.seed}")
    if any(tally.deviations for tally in matrix.tallies):
        print(f"What is left of the runs that deviate: {folder}")
        return 1
    shutil.rmtree(folder)
    return 128 + matrix.stopped_by if matrix.stopped_by else 0


if __name__ == "__main__":
    sys.exit(main())
