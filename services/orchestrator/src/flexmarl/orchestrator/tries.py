"""What one try of a group asks a worker for, or that it may not start yet."""

from __future__ import annotations

from flexmarl.contracts.v1 import experience_pb2, rollout_pb2
from flexmarl.orchestrator.admission import Place, admits, due
from flexmarl.orchestrator.choices import Choices
from flexmarl.orchestrator.draws import Draws
from flexmarl.orchestrator.plan import train_request
from flexmarl.orchestrator.step import Parts
from flexmarl.orchestrator.tasks import Tasks


class Tries:
    """Of one incarnation; `draws`: of partial rollouts, told of every draw that is issued."""

    def __init__(
        self, parts: Parts, tasks: Tasks, choices: Choices, draws: Draws | None, incarnation: int
    ) -> None:
        spec = parts.job.spec
        self._parts, self._tasks, self._choices, self._draws = parts, tasks, choices, draws
        self._incarnation = incarnation
        self._staleness, self._local = spec.pipeline.max_staleness, spec.local_policies
        self._most_refills = spec.pipeline.filter.max_refills if spec.pipeline.filter else 0

    def request(self, group: Place, version: int) -> rollout_pb2.RunGroupRequest | None:
        """The message, which is sent now, while the job stands at `version`; None: not yet."""
        engines, task = self._parts.engines, self._choices.task(group)
        policies = self._tasks.participants(task)
        versions = map(self._served, self._local if policies is None else policies)
        if self._draws is None:
            newest = group[0]
            oldest = max(0, newest - self._staleness)
            if not admits(newest, versions, self._staleness):
                return None
        else:
            draw, oldest = group[0] * self._draws.per_step + group[1], version
            if not self._draws.may_issue(draw, oldest) or not admits(oldest, versions, 0):
                return None
            newest = due(oldest, self._staleness, self._parts.job.spec.steps)
            if draw in self._draws.holes:
                newest = self._draws.holes[draw][0]
            self._draws.issue(draw, oldest)
        routes = engines.routes(newest, oldest if self._staleness else None, policies)
        refill = self._choices.refill(group)
        request = train_request(self._parts.job, task, self.wire(group), routes, refill=refill)
        request.hold = self._draws is not None
        request.final = refill >= self._most_refills
        return request

    def wire(self, place: Place) -> experience_pb2.GroupId:
        step, index = place
        return experience_pb2.GroupId(incarnation=self._incarnation, step=step, index=index)

    def _served(self, policy: str) -> int | None:
        """The version that engines of the policy hold or, where a turn may begin with an older one,
        are about to; None: not known."""
        version = self._parts.engines.version(policy)
        published = self._parts.training.weights.get(policy)
        if version is None and self._staleness and published is not None:
            return published.version
        return version
