"""A job that is struck many times, and whether it came out as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .running import Job, Line, seen
from .strikes import Strike

MOMENTS = ("any", "any", "rollout", "training", "checkpoint", "evaluation")
MOMENT_SECONDS = 5.0
"""How long a strike waits for the moment that it was meant for."""
RECOVERY_SECONDS = 120.0
ROUNDING = 1e-9
"""Far more than another order makes of float64 (1e-17 was seen of weights), far less than a step
moves a weight."""
TAIL_BYTES = 64 << 10


@dataclass(frozen=True)
class Struck:
    name: str
    phase: str
    """What the job was doing."""
    recovery: float | None
    """Seconds until a step was finished; None: the next strike came before."""


def last_line(job: Job) -> Line | None:
    """Of the metrics, without reading all of them."""
    try:
        with (job.run_dir / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            whole = [text for text in file.read().splitlines(True) if text.endswith(b"\n")]
    except FileNotFoundError:
        return None
    return dict(json.loads(whole[-1])) if whole else None


def phase_of(job: Job) -> str:
    progress = job.progress()
    if progress.get("phase") in ("Evaluating", "Complete"):
        return "evaluation" if progress["phase"] == "Evaluating" else "end"
    if progress.get("phase") != "Running":
        return "start"
    if progress["groups_done"] < progress["groups_total"]:
        return "rollout"
    return "checkpoint" if _saving(job) else "training"


def _saving(job: Job) -> bool:
    """Whether a trainer has begun to write a state and there is no manifest yet."""
    with contextlib.suppress(FileNotFoundError):
        newest = max((job.run_dir / "checkpoints").iterdir(), default=job.run_dir / "none")
        return any(path.is_dir() for path in newest.iterdir()) and not any(
            path.name == "manifest.json" for path in newest.iterdir()
        )
    return False


def torment(job: Job, strikes: Sequence[Strike], chance: random.Random) -> Iterator[Struck]:
    """Strike the running job, mostly after it has recovered; ends early when the job does."""
    # Each strike has a chance of its own: what the one before met changes nothing about it.
    chances = [random.Random(chance.getrandbits(64)) for _ in strikes]
    seen(lambda: last_line(job) is not None or job.ended(), RECOVERY_SECONDS)
    for strike, own in zip(strikes, chances, strict=True):
        moment, pause, waits = own.choice(MOMENTS), own.random(), own.random() < 0.75
        if moment == "any":
            time.sleep(pause * 0.8)
        else:
            seen(lambda m=moment: phase_of(job) == m or job.ended(), MOMENT_SECONDS)  # type: ignore[misc]
            time.sleep(pause * 0.15)
        if job.ended() or phase_of(job) == "end":
            break
        phase, begin = phase_of(job), time.time()
        strike.blow(job, own)
        recovery = None
        if waits:
            if not seen(lambda b=begin: _finished_since(job, b), RECOVERY_SECONDS):  # type: ignore[misc]
                raise AssertionError(f"no step within {RECOVERY_SECONDS:g} s after {strike.name}")
            recovery = time.time() - begin
        yield Struck(strike.name, phase, recovery)


def _finished_since(job: Job, begin: float) -> bool:
    line = last_line(job)
    return job.ended() or (line is not None and line["time"] > begin)


def deviations(job: Job, reference: Job) -> list[str]:
    """In what a job in deterministic mode differs from the run that nothing disturbed."""
    found = _same_data(job, reference)
    if job.checksums() != reference.checksums():
        found.append(f"final weights: {job.checksums()}, not {reference.checksums()}")
    for mine, theirs in zip(job.lines(), reference.lines(), strict=False):
        if _trained(mine) != _trained(theirs):
            found.append(f"step {mine['step']}: trained {_trained(mine)}, not {_trained(theirs)}")
    return found


def unordered_deviations(job: Job, reference: Job) -> list[str]:
    """In what a job that folds groups as they arrive, in float64, differs by more than rounding
    from the run that nothing disturbed: another group, or one twice, moves weights by some LR."""
    found = _same_data(job, reference)
    for name, tensors in reference.weights().items():
        mine = job.weights()[name]
        apart = [float(abs(mine[key] - value).max()) for key, value in tensors.items()]
        if not all(most < ROUNDING for most in apart):
            found.append(f"final weights of {name}: {max(apart):.3g} apart")
    for line, undisturbed in zip(job.lines(), reference.lines(), strict=False):
        for name, theirs in _trained(undisturbed).items():
            own = _trained(line)[name]
            found += [
                f"step {line['step']}: {key} of {name} {own.get(key)}, not {value}"
                for key, value in theirs.items()
                if key != "folds" and not _near(own.get(key, math.nan), value)
            ]
    return found


def _near(mine: float, theirs: float) -> bool:
    return math.isclose(mine, theirs, rel_tol=ROUNDING, abs_tol=ROUNDING)


def stale_deviations(job: Job, reference: Job, staleness: int) -> list[str]:
    """In what a job with bounded staleness breaks its promises: the data, once, never too old."""
    found = _common(job, reference)
    partial = json.loads(job.file.read_text())["spec"]["pipeline"].get("partialRollout", False)
    mine, theirs = (
        [task for _, tasks in each.tasks() for task in tasks] for each in (job, reference)
    )
    if Counter(mine) != Counter(theirs) if partial else mine != theirs:
        found.append(f"trained {mine}, not {theirs}")
    for line, undisturbed in zip(job.lines(), reference.lines(), strict=False):
        for name, policy in line["policies"].items():
            wanted = undisturbed["policies"][name]["sequences"]
            if policy["sequences"] != wanted:
                found.append(
                    f"step {line['step']}: {policy['sequences']} sequences of {name}, not {wanted}"
                )
        told = [line["staleness"]["trained"]]
        told += [policy["staleness_max"] for policy in line["policies"].values()]
        if max(told) > staleness:
            found.append(f"step {line['step']}: tokens {max(told)} versions old")
    return found


def _same_data(job: Job, reference: Job) -> list[str]:
    """What was trained, and what it was worth."""
    found = _common(job, reference)
    if job.tasks() != reference.tasks():
        found.append("other tasks were trained")
    for mine, theirs in zip(job.lines(), reference.lines(), strict=False):
        # An orchestrator that took over never heard of the rewards of groups stored before.
        whole = not mine["counts"].get("groups-from-before")
        if whole and not _close(_rewards(mine), _rewards(theirs)):
            found.append(f"step {mine['step']}: rewards {_rewards(mine)}, not {_rewards(theirs)}")
    for mine, theirs in zip(job.lines("evals.jsonl"), reference.lines("evals.jsonl"), strict=False):
        if not _close(_rewards(mine), _rewards(theirs)):
            found.append(f"evaluation {mine['step']}: {_rewards(mine)}, not {_rewards(theirs)}")
    return found


def _common(job: Job, reference: Job) -> list[str]:
    found = []
    if job.progress().get("phase") != "Complete":
        found.append(f"the job is {job.progress()}")
    for name in ("metrics.jsonl", "evals.jsonl"):
        mine, theirs = ([line["step"] for line in each.lines(name)] for each in (job, reference))
        if mine != theirs:
            found.append(f"{name}: steps {mine}, not {theirs}")
    given_up = [line["step"] for line in job.lines() if line["counts"].get("groups-given-up")]
    if given_up:
        found.append(f"groups were given up in steps {given_up}")
    left = job.left()
    return found + ([f"left behind: {left}"] if left else [])


def _trained(line: Line) -> dict[str, Line]:
    """What the trainers say of a step, but for how long it took."""
    return {
        name: {key: value for key, value in policy.items() if not key.endswith("_seconds")}
        for name, policy in line["policies"].items()
    }


def _rewards(line: Line) -> dict[str, float | None]:
    """None: the agent was in no episode."""
    return {name: agent["reward"] for name, agent in line["agents"].items()}


def _close(one: dict[str, float | None], other: dict[str, float | None]) -> bool:
    """Means are sums in the order of arrival."""
    return one.keys() == other.keys() and all(
        math.isclose(mine, theirs, rel_tol=1e-9)
        if (mine := one[name]) is not None and (theirs := other[name]) is not None
        else one[name] == other[name]
        for name in one
    )
