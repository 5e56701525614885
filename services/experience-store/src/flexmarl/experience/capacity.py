"""Whether the server's memory can hold what the job has to keep there. Pure.

A lower bound, from the job file alone: what a step needs is known only once it was played. A job
whose turns are longer than one, or have long prompts, may still find the store full later; then a
step that can never fit ends it, see `store`.
"""

from __future__ import annotations

from flexmarl.contracts.job import MARLJobSpec
from flexmarl.runtime.errors import InvalidJobError

TOKEN_BYTES = 4 + 1 + 4
"""Id, mask, log-prob."""


def step_bytes(spec: MARLJobSpec) -> int:
    """Of one step in which every trained agent takes one turn of its `maxTokens`.

    Where tasks name their participants, only the agent that says least takes one.
    """
    trained = set(spec.trained_policies)
    tokens = [agent.sampling.max_tokens for agent in spec.agents if agent.policy in trained]
    each = sum(tokens) if spec.workflow.participants is None else min(tokens, default=0)
    return spec.batch.tasks_per_step * spec.batch.group_size * each * TOKEN_BYTES


def kept_steps(spec: MARLJobSpec) -> int:
    """How many steps' groups stay in the store behind a commit.

    A deterministic job that rolls back to a checkpoint has to replay what it replayed the first
    time: all that was trained since the checkpoint stays, too.
    """
    replay = spec.pipeline.replay
    if replay is None:
        return 0
    return replay.max_age + (spec.checkpoint.every_steps if spec.pipeline.deterministic else 0)


def steps_held(spec: MARLJobSpec) -> int:
    """How many steps may lie in the store at once: the one that is trained, later ones, replay."""
    return 1 + spec.pipeline.max_staleness + kept_steps(spec)


def check_capacity(spec: MARLJobSpec, max_memory: int) -> None:
    """InvalidJobError when not even short episodes fit; `max_memory` 0: the server has no bound."""
    steps, one = steps_held(spec), step_bytes(spec)
    if not max_memory or steps * one <= max_memory:
        return
    field = "store.maxMemoryMib" if spec.store.url is None else "store.url: the server's maxmemory"
    counted = "1" + (f" + maxStaleness {spec.pipeline.max_staleness}" * (steps > 1))
    if spec.pipeline.replay:
        counted += f" + replay.maxAge {spec.pipeline.replay.max_age}"
        if spec.pipeline.deterministic:
            counted += f" + checkpoint.everySteps {spec.checkpoint.every_steps}"
    batch = spec.batch
    raise InvalidJobError(
        f"{field}: {max_memory >> 20} MiB cannot hold {steps} steps ({counted}) of "
        f"{batch.tasks_per_step} groups of {batch.group_size} episodes: even one turn of maxTokens "
        f"by each agent needs {-(-steps * one >> 20)} MiB; raise it, or lower batch.tasksPerStep, "
        "batch.groupSize, sampling.maxTokens or pipeline.maxStaleness"
    )
