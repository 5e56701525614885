"""One step as the orchestrator sees it: which of its groups are done, and how they went.

A step's groups may be played while earlier steps are trained, so several of these are open at once
when staleness is allowed. Playing is in `rollouts`, training in `training`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter as Metric
from prometheus_client import Gauge

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.data.difficulty import Tried
from flexmarl.data.notes import Note
from flexmarl.data.tasks import Task
from flexmarl.experience.client import ExperienceClient
from flexmarl.orchestrator.checkpoint import Saved
from flexmarl.orchestrator.engines import Engines
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.plan import EPISODES_SHOWN
from flexmarl.orchestrator.scores import Scores, solved, tokens
from flexmarl.orchestrator.training import Trained, Training
from flexmarl.orchestrator.transcripts import episode_lines
from flexmarl.orchestrator.workers import Workers
from flexmarl.runtime.errors import JobFailedError

EPISODES = Metric("flexmarl_orchestrator_episodes_total", "Episodes by outcome.", ["outcome"])
REWARD = Gauge("flexmarl_orchestrator_reward_mean", "Mean reward of the last step.", ["agent"])


@dataclass(frozen=True, slots=True)
class Parts:
    """What a step works with."""

    job: MARLJob
    limits: Limits
    experience: ExperienceClient
    workers: Workers
    engines: Engines
    training: Training


@dataclass(frozen=True, slots=True)
class Finished:
    line: dict[str, Any]
    """For `metrics.jsonl`."""
    episodes: list[dict[str, Any]]
    """For `episodes.jsonl`."""
    trained: dict[str, Trained]

    @property
    def saved(self) -> dict[str, Saved]:
        """Of the policies that wrote their state."""
        return {name: each.saved for name, each in self.trained.items() if each.saved}

    @property
    def updated(self) -> bool:
        return any(trained.updated for trained in self.trained.values())


class Step:
    """Step `number`, with `total` groups."""

    def __init__(
        self,
        job: MARLJob,
        number: int,
        total: int,
        tasks: dict[int, Task],
        stored: Mapping[int, bytes],
    ) -> None:
        """`stored`: indexes that were in the store before, which count and are not played, with
        the notes that lie there."""
        self.number, self.total, self.tasks = number, total, tasks
        self.done = set(stored)
        self.complete = asyncio.Event()
        """Every group is done; cleared again when the store turns out to lack one."""
        self.missing: set[int] = set()
        """Indexes that were done, are not in the store any more, and not done again."""
        self.complete_at: float | None = None
        self.counts: Counter[str] = Counter()
        self.dropped: Mapping[int, Sequence[Tried]] = {}
        """By index: groups whose place another task took."""
        self._group_size = job.spec.batch.group_size
        self._unseen = len(self.done)
        self._answered: set[int] = set()
        self._scores = Scores.of(job.spec)
        self._groups: dict[int, dict[str, Any]] = {}
        self.learn(stored)
        self._oldest: dict[int, int] = {}
        self._lines: list[dict[str, Any]] = []
        self._see()

    def answer(
        self, index: int, task: Task, group: rollout_pb2.GroupFinished, *, now: bool = True
    ) -> None:
        """That group is stored; its worker said so `now`, or when it had no place yet. One that was
        lost and played again counts once."""
        if index not in self._answered:
            self._answered.add(index)
            self.tasks[index] = task
            self._scores.add(group)
            done = time.monotonic()
            told = {
                "seconds": done,
                "solved": solved(group, self._scores.solved),
                "tokens": tokens(group),
            }
            if now:
                told |= {"began": done - group.seconds, "played": done - group.storing_seconds}
            self._groups[index] = told | self._groups.get(index, {})
            if group.HasField("oldest_version"):
                self._oldest[index] = group.oldest_version
            for episode in group.episodes:
                EPISODES.labels(episode.outcome).inc()
            self._lines += episode_lines(self.number, index, task, group)
        self._finish(index)

    def learn(self, notes: Mapping[int, bytes]) -> None:
        """How groups went whose answers were for another incarnation, or never came."""
        for index, note in notes.items():
            if index not in self._groups and (solved := Note.read(note).solved):
                self._groups[index] = {"solved": solved}

    def give_up(self, index: int, task: Task, reason: str) -> None:
        """That group could not be played and is stored empty."""
        self.tasks[index] = task
        self.counts["groups-given-up"] += 1
        self._scores.give_up(self._group_size, f"task {task.id}: {reason}")
        self._finish(index)

    def lost(self, stored: Iterable[int]) -> set[int]:
        """Indexes that are done and not `stored`; they are not done any more."""
        lacking = self.done - set(stored)
        if lacking:
            self.done -= lacking
            self.missing |= lacking
            self.complete.clear()
        return lacking

    def sampled(self, agents: Iterable[str]) -> int:
        """Tokens of these agents so far."""
        return sum(self._scores.agents[agent].sampled_tokens for agent in agents)

    def oldest(self, version: int) -> int:
        """Of the versions that sampled its groups, `version` if none is known."""
        return min((known for known in self._oldest.values()), default=version)

    def must_have_scored(self) -> None:
        """JobFailedError: all groups are done and no episode could be scored."""
        if not self._unseen and self.complete.is_set() and not self._scores.scored:
            raise JobFailedError(
                f"step {self.number}: none of its {self._scores.episodes} episodes could be "
                f"scored: {self._scores.why_unscored()}"
            )

    def finished(
        self,
        started: float,
        seconds: dict[str, float],
        staleness: dict[str, int],
        trained: dict[str, Trained],
    ) -> Finished:
        """What is written down of the step. `started`: its training, by the monotonic clock."""
        agents = self._scores.agents
        for name, score in agents.items():
            REWARD.labels(name).set(score.reward if score.reward is not None else float("nan"))
        counts = Counter(self._scores.outcomes) + self.counts
        counts += Counter(
            {
                "groups-from-before": self._unseen,
                "groups-duplicate": self._scores.duplicates,
                "groups-dropped": sum(map(len, self.dropped.values())),
                "forks": self._scores.forks,
            }
        )
        places = range(self.total)
        line = {
            "step": self.number,
            "time": time.time(),
            "seconds": seconds,
            "staleness": staleness,
            "tokens": {
                "prompt": sum(score.prompt_tokens for score in agents.values()),
                "sampled": sum(score.sampled_tokens for score in agents.values()),
            },
            "agents": {
                name: score.score() | {"turns": score.turns, "sampled_tokens": score.sampled_tokens}
                for name, score in agents.items()
            },
            "policies": {
                name: {"version": self.number + 1, "updated": result.updated} | result.metrics
                for name, result in sorted(trained.items())
            },
            "tasks": [self.tasks[index].id if index in self.tasks else None for index in places],
            "groups": [self._group(index, started) for index in places],
            "counts": dict(sorted(counts.items())),
        }
        shown = sorted(self._lines, key=lambda line: (line["index"], line["episode"]))
        return Finished(line, shown[:EPISODES_SHOWN], trained)

    def _group(self, index: int, started: float) -> dict[str, Any]:
        """When it began, was played, and was done (stored and heard of); who solved it how often,
        its tokens, and what was dropped before it; without what is not known of it."""
        known = self._groups.get(index, {})
        if tried := self.dropped.get(index):
            known = known | {"dropped": [{"task": task, "solved": own} for task, own in tried]}
        moments = [at for at in ("began", "played", "seconds") if at in known]
        return known | {at: round(known[at] - started, 4) for at in moments}

    def _finish(self, index: int) -> None:
        self.done.add(index)
        self.missing.discard(index)
        self._see()

    def _see(self) -> None:
        if len(self.done) == self.total:
            self.complete_at = time.monotonic()
            self.complete.set()
