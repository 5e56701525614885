"""What is due when, and which message asks for it; pure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from flexmarl.contracts.job import MARLJob, MARLJobSpec
from flexmarl.contracts.v1 import experience_pb2, rollout_pb2
from flexmarl.data.tasks import Task
from flexmarl.runtime.seeds import derive_seed

EPISODES_SHOWN = 5
"""Readable episodes per step."""


def eval_due(spec: MARLJobSpec, version: int, evaluated: Sequence[int]) -> bool:
    """Whether `version` is to be evaluated; `evaluated` are the versions that this run has."""
    if spec.eval is None or version in evaluated:
        return False
    every = spec.eval.every_steps
    ends = not evaluated or version == spec.steps
    return ends or (every > 0 and version % every == 0)


def checkpoint_due(spec: MARLJobSpec, version: int) -> bool:
    return version == spec.steps or version % spec.checkpoint.every_steps == 0


def train_request(
    job: MARLJob,
    task: Task,
    group: experience_pb2.GroupId,
    routes: list[rollout_pb2.Route],
    *,
    refill: int = 0,
) -> rollout_pb2.RunGroupRequest:
    """One group of a step; `refill`: how many tasks were dropped from its place before."""
    size = job.spec.batch.group_size
    names: list[str | int] = ["group", group.step, group.index]
    if refill:
        names.append(refill)
    return rollout_pb2.RunGroupRequest(
        id=group,
        task_id=task.id,
        task=json.dumps(task.record),
        episodes=size,
        seed=derive_seed(job.spec.seed, *names),
        routes=routes,
        purpose=rollout_pb2.TRAIN,
        transcripts=group.index < math.ceil(EPISODES_SHOWN / size),
    )


def eval_request(
    job: MARLJob, task: Task, group: experience_pb2.GroupId, routes: list[rollout_pb2.Route]
) -> rollout_pb2.RunGroupRequest:
    """One held-out task; its seed depends on nothing that changes between two evaluations."""
    spec = job.spec.eval
    assert spec is not None
    return rollout_pb2.RunGroupRequest(
        id=group,
        task_id=task.id,
        task=json.dumps(task.record),
        episodes=spec.samples,
        seed=derive_seed(spec.seed, "eval", group.index),
        routes=routes,
        purpose=rollout_pb2.EVAL,
    )
