"""One evaluation: held-out tasks at fixed seeds, nothing stored, nothing learnt."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import structlog
from prometheus_client import Gauge

from flexmarl.contracts.v1 import experience_pb2, rollout_pb2
from flexmarl.orchestrator.admission import Place
from flexmarl.orchestrator.groups import Groups
from flexmarl.orchestrator.inputs import Inputs
from flexmarl.orchestrator.plan import eval_request
from flexmarl.orchestrator.scores import Scores
from flexmarl.orchestrator.step import Parts
from flexmarl.runtime.errors import JobFailedError

ACCURACY = Gauge("flexmarl_orchestrator_eval_accuracy", "Of the last evaluation.", ["agent"])

log = structlog.get_logger()


class Evaluation:
    """Of version `version`; `run` it once."""

    def __init__(self, parts: Parts, incarnation: int, version: int, inputs: Inputs) -> None:
        spec = parts.job.spec
        assert spec.eval is not None
        self._samples = spec.eval.samples
        self._parts, self._incarnation = parts, incarnation
        self._version, self._tasks = version, inputs.held_out
        self._participants = inputs.tasks.tested
        self._done: set[int] = set()
        self.scores = Scores.of(spec)
        self._groups = Groups(self, parts.workers, parts.limits, episodes=spec.eval.samples)

    def progress(self) -> tuple[int, int]:
        """Groups done, and all of them."""
        return len(self._done), len(self._tasks)

    async def run(self) -> dict[str, Any]:
        """The line for `evals.jsonl`. JobFailedError: no episode could be scored."""
        started = time.monotonic()
        await self._parts.engines.ready()
        self._groups.add((self._version, index) for index in range(len(self._tasks)))
        async with asyncio.TaskGroup() as background:
            playing = background.create_task(self._groups.run())
            await self._groups.idle()
            playing.cancel()
        if not self.scores.scored:
            raise JobFailedError(
                f"evaluation of version {self._version}: none of its {self.scores.episodes} "
                f"episodes could be scored: {self.scores.why_unscored()}"
            )
        for name, score in self.scores.agents.items():
            ACCURACY.labels(name).set(
                score.accuracy if score.accuracy is not None else float("nan")
            )
        return {
            "step": self._version,
            "time": time.time(),
            "seconds": time.monotonic() - started,
            "agents": {name: score.score() for name, score in self.scores.agents.items()},
            "counts": dict(sorted(self.scores.outcomes.items())),
        }

    # What `Groups` asks of its owner.

    def request(self, group: Place) -> rollout_pb2.RunGroupRequest:
        _, index = group
        name = experience_pb2.GroupId(
            incarnation=self._incarnation, step=self._version, index=index
        )
        task = self._tasks[index]
        routes = self._parts.engines.routes(self._version, policies=self._participants(task))
        return eval_request(self._parts.job, task, name, routes)

    async def answer(self, group: Place, worker: str, said: rollout_pb2.GroupFinished) -> bool:
        self.scores.add(said)
        self._done.add(group[1])
        return True

    async def hopeless(self, group: Place, reason: str) -> None:
        self.scores.give_up(self._samples, f"task {self._tasks[group[1]].id}: {reason}")
        self._done.add(group[1])
