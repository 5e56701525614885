"""`bench pipeline`: what it is worth to train while others still play.

Scripted turns with lognormal lengths (p99 = 10 x median), three per episode, three policies, and
training that takes as long as playing. The bound of a step follows from the moments at which its
groups were played, before the store had them: a trainer that folds whatever is there ends at
max_i(moment_i + work from i on).
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flexmarl.bench.measure import Measure, alone, higher, paired
from flexmarl.bench.simulated import Line, chain_job, run_job

POLICIES = 3
STEPS = 8
WARM = 2
"""Steps at the start that do not count: everything is touched for the first time."""
SCRIPTED = {"medianTokens": 40, "p99Tokens": 400, "tokensPerSecond": 250}
OF_BOUND = 0.9


@dataclass(frozen=True, slots=True)
class Case:
    tasks: int
    group: int
    goal: float
    """How many times as fast as without overlap."""

    @property
    def name(self) -> str:
        return f"{self.tasks} x {self.group}"


CASES = (Case(4, 16, 1.25), Case(32, 8, 1.5))


@dataclass(frozen=True, slots=True)
class Cycle:
    """One step, from the end of the one before to its own, in seconds."""

    seconds: float
    bound: float
    trainer_idle: float
    """Share in which a trainer had nothing to do, mean over policies."""
    rollout_idle: float
    """Share in which nothing of this step was being played."""


async def run(rounds: int, cases: Sequence[Case] = CASES) -> list[Measure]:
    """Each case with and without overlap, alternately, `rounds` times."""
    measures = []
    for case in cases:
        rate = await training_rate(case)
        overlapped: list[list[Cycle]] = []
        plain: list[list[Cycle]] = []
        stale: list[list[Cycle]] = []
        for _ in range(rounds):
            overlapped.append(await cycles(case, rate, {}))
            plain.append(await cycles(case, rate, {"overlap": False}))
            stale.append(await cycles(case, rate, {"maxStaleness": 1}))
        measures += [
            paired(
                f"{case.name}: overlap", _rates(overlapped), _rates(plain), "steps/s", case.goal
            ),
            higher(
                f"{case.name}: share of the bound",
                [sum(c.bound for c in run) / sum(c.seconds for c in run) for run in overlapped],
                "",
                OF_BOUND,
            ),
            paired(f"{case.name}: overlap, staleness 1", _rates(stale), _rates(plain), "steps/s"),
            *_idle(f"{case.name}: overlap", overlapped),
            *_idle(f"{case.name}: no overlap", plain),
        ]
    return measures


async def training_rate(case: Case) -> float:
    """Tokens per second at which training a step takes as long as playing it."""
    lines = await run_job(document(case, None, {"overlap": False}))
    rates: list[float] = []
    for line in lines[WARM:]:
        tokens = statistics.mean(_tokens(line, f"p{number}") for number in range(POLICIES))
        rates.append(tokens / line["seconds"]["rollout"])
    return statistics.median(rates)


async def cycles(case: Case, rate: float, pipeline: Mapping[str, Any]) -> list[Cycle]:
    lines = await run_job(document(case, rate, pipeline))
    return [
        cycle(before, line, rate)
        for before, line in zip(lines[WARM - 1 :], lines[WARM:], strict=False)
    ]


def document(case: Case, rate: float | None, pipeline: Mapping[str, Any]) -> dict[str, Any]:
    made = chain_job(
        POLICIES,
        {"tasksPerStep": case.tasks, "groupSize": case.group},
        steps=STEPS,
        scripted=SCRIPTED,
        pipeline=dict(pipeline),
        roles={"trainer": {"replicas": POLICIES}},
    )
    made = copy.deepcopy(made)
    for policy in made["spec"]["policies"] if rate else []:
        policy["training"]["simulatedTokensPerSecond"] = rate
    return made


def cycle(before: Line, line: Line, rate: float) -> Cycle:
    """What the metrics of one step and the end of the one before say."""
    seconds = line["time"] - before["time"]
    gap = seconds - line["seconds"]["step"]
    policies = [f"p{number}" for number in range(POLICIES)]
    bounds = [
        bound([(gap + group["played"], group["tokens"][policy] / rate) for group in line["groups"]])
        for policy in policies
    ]
    trained = [line["policies"][policy]["train_seconds"] for policy in policies]
    played = max(group["played"] for group in line["groups"])
    return Cycle(
        seconds,
        max(bounds),
        1 - statistics.mean(trained) / seconds,
        max(0.0, 1 - (gap + played) / seconds),
    )


def bound(groups: Sequence[tuple[float, float]]) -> float:
    """When the last of `groups`, (when it was played, work), can be done by one that has each at
    once and never waits idly."""
    ended = 0.0
    for played, work in sorted(groups):
        ended = max(ended, played) + work
    return ended


def _tokens(line: Line, policy: str) -> int:
    return sum(group["tokens"][policy] for group in line["groups"])


def _rates(runs: Sequence[Sequence[Cycle]]) -> list[float]:
    return [len(run) / sum(cycle.seconds for cycle in run) for run in runs]


def _idle(name: str, runs: Sequence[Sequence[Cycle]]) -> list[Measure]:
    return [
        alone(f"{name}: trainers idle", [_share(run, _trainer_idle) for run in runs], ""),
        alone(f"{name}: rollout idle", [_share(run, _rollout_idle) for run in runs], ""),
    ]


def _trainer_idle(cycle: Cycle) -> float:
    return cycle.trainer_idle


def _rollout_idle(cycle: Cycle) -> float:
    return cycle.rollout_idle


def _share(run: Sequence[Cycle], idle: Callable[[Cycle], float]) -> float:
    """Of the run's time."""
    return sum(idle(cycle) * cycle.seconds for cycle in run) / sum(cycle.seconds for cycle in run)
