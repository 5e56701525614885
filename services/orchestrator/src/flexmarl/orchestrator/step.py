"""One step: every group played and stored, every policy trained on all of them, engines fresh.

Policies are asked to train when the step begins, so that they fold groups while others are played.
The step is over when every policy has published version step + 1 and its engines hold it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import Counter as Metric
from prometheus_client import Gauge, Histogram

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import experience_pb2, rollout_pb2
from flexmarl.contracts.v1.weights_pb2 import WeightsRef
from flexmarl.data.tasks import Task
from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.samples import GroupId, PolicySamples
from flexmarl.orchestrator.engines import Engines
from flexmarl.orchestrator.groups import Groups, Workers
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.plan import EPISODES_SHOWN, group_seconds, train_request
from flexmarl.orchestrator.scores import Scores
from flexmarl.orchestrator.training import Order, Standing, Trained, Training
from flexmarl.orchestrator.transcripts import episode_lines
from flexmarl.runtime.errors import JobFailedError

EPISODES = Metric("flexmarl_orchestrator_episodes_total", "Episodes by outcome.", ["outcome"])
REWARD = Gauge("flexmarl_orchestrator_reward_mean", "Mean reward of the last step.", ["agent"])
STEP_SECONDS = Histogram(
    "flexmarl_orchestrator_step_seconds",
    "Time of one step.",
    buckets=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000),
)

log = structlog.get_logger()


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
    def updated(self) -> bool:
        return any(trained.updated for trained in self.trained.values())


class Step:
    """Step `order.standing.version`; `run` it once."""

    def __init__(
        self, parts: Parts, incarnation: int, tasks: list[Task], stored: frozenset[int]
    ) -> None:
        """`stored`: indexes that are in the store already; they count and are not played."""
        self._parts, self._incarnation, self._tasks = parts, incarnation, tasks
        self._unseen = len(stored)
        self.scores = Scores.of([agent.name for agent in parts.job.spec.agents])
        self._agents = {
            policy: [agent.name for agent in parts.job.spec.agents_of(policy)]
            for policy in parts.job.spec.trained_policies
        }
        self._lines: list[dict[str, Any]] = []
        self._counts: Counter[str] = Counter()
        self._number = 0
        self._published_at = 0.0
        self.groups = Groups(
            parts.workers,
            parts.limits,
            total=len(tasks),
            episodes=parts.job.spec.batch.group_size,
            seconds=group_seconds(parts.job.spec, parts.limits.group_slack),
            request=self._request,
            answer=self._answer,
            hopeless=self._store_empty,
            done=stored,
        )

    async def run(self, standing: Standing, directory: Path | None) -> Finished:
        """Play, train, sync. JobFailedError: no episode of the whole step could be scored."""
        self._number, started = standing.version, time.monotonic()
        ended: dict[str, float] = {}
        order = Order(standing, len(self._tasks), directory, self._waiting, self._published)
        async with asyncio.TaskGroup() as background:
            playing = background.create_task(self.groups.run(self._stored))
            overseeing = background.create_task(self._oversee(ended))
            trained = await self._parts.training.step(order)
            ended["train"] = time.monotonic()
            await self._last_answers()
            playing.cancel()
            overseeing.cancel()
            await self._parts.engines.ready()
        self._must_have_scored()
        now = time.monotonic()
        STEP_SECONDS.observe(now - started)
        seconds = {
            "step": now - started,
            "rollout": ended.get("rollout", now) - started,
            "train": max(
                (t.metrics.get("train_seconds", 0.0) for t in trained.values()), default=0
            ),
            "sync": max(0.0, now - ended["train"]),
            "checkpoint": max((t.seconds_saving for t in trained.values()), default=0.0),
        }
        return Finished(self._line(seconds, trained), self._lines[:EPISODES_SHOWN], trained)

    def _request(self, index: int) -> rollout_pb2.RunGroupRequest:
        group = experience_pb2.GroupId(
            incarnation=self._incarnation, step=self._number, index=index
        )
        routes = self._parts.engines.routes(self._number)
        return train_request(self._parts.job, self._tasks[index], group, routes)

    def _answer(self, index: int, group: rollout_pb2.GroupFinished) -> None:
        self.scores.add(group)
        for episode in group.episodes:
            EPISODES.labels(episode.outcome).inc()
        self._lines += episode_lines(self._number, index, self._tasks[index], group)

    async def _store_empty(self, index: int, reason: str) -> None:
        """A group that cannot be played teaches nobody anything, and must not block the step."""
        spec = self._parts.job.spec
        await self._parts.experience.append_group(
            GroupId(self._incarnation, self._number, index),
            self._tasks[index].id,
            [PolicySamples(policy, self._number) for policy in spec.trained_policies],
        )
        self._counts["groups-given-up"] += 1
        self.scores.give_up(spec.batch.group_size, f"task {self._tasks[index].id}: {reason}")

    async def _stored(self) -> set[int]:
        found = await self._parts.experience.stored(self._number)
        return set(range(len(self._tasks))) if found.closed else set(found.indexes)

    def _waiting(self) -> dict[str, int]:
        """Tokens that each policy has to learn from so far."""
        return {
            policy: sum(self.scores.agents[agent].sampled_tokens for agent in agents)
            for policy, agents in self._agents.items()
        }

    def _published(self, policy: str, weights: WeightsRef) -> None:
        self._parts.engines.want(policy, weights)

    async def _oversee(self, ended: dict[str, float]) -> None:
        """Note when the groups were done; fail when nothing can come of them any more."""
        await self.groups.complete.wait()
        ended["rollout"] = time.monotonic()
        self._must_have_scored()
        await asyncio.sleep(self._parts.limits.train_tail)
        raise JobFailedError(
            f"step {self._number}: all groups were played {self._parts.limits.train_tail:g} s ago "
            f"and the trainers are not done; see their logs"
        )

    async def _last_answers(self) -> None:
        """A trainer may be done before the last answer is here; that one is still worth having."""
        try:
            async with asyncio.timeout(self._parts.limits.answers):
                await self.groups.complete.wait()
        except TimeoutError:
            log.warning("answers of some groups did not come", step=self._number)

    def _must_have_scored(self) -> None:
        if not self._unseen and self.groups.complete.is_set() and not self.scores.scored:
            raise JobFailedError(
                f"step {self._number}: none of its {self.scores.episodes} episodes could be "
                f"scored: {self.scores.why_unscored()}"
            )

    def _line(self, seconds: dict[str, float], trained: dict[str, Trained]) -> dict[str, Any]:
        agents = self.scores.agents
        for name, score in agents.items():
            REWARD.labels(name).set(score.reward if score.reward is not None else float("nan"))
        counts = Counter(self.scores.outcomes) + self._counts
        counts += Counter(
            {
                "groups-from-before": self._unseen,
                "groups-reissued": self.groups.reissued,
                "groups-duplicate": self.scores.duplicates,
                "forks": self.scores.forks,
            }
        )
        return {
            "step": self._number,
            "time": time.time(),
            "seconds": seconds,
            "tokens": {
                "prompt": sum(score.prompt_tokens for score in agents.values()),
                "sampled": sum(score.sampled_tokens for score in agents.values()),
            },
            "agents": {
                name: score.score() | {"turns": score.turns, "sampled_tokens": score.sampled_tokens}
                for name, score in agents.items()
            },
            "policies": {
                name: {"version": self._number + 1, "updated": result.updated} | result.metrics
                for name, result in trained.items()
            },
            "tasks": [task.id for task in self._tasks],
            "counts": dict(counts),
        }
