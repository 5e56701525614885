"""Step after step of one incarnation, with the evaluations and checkpoints in between.

A finished step is written down in an order that makes every crash harmless: the trainers have
committed, then metrics, then the checkpoint's manifest, then the store's `step`, then the step is
closed. Whoever takes over before the store knows plays an empty step: all of it is stored already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from flexmarl.orchestrator import checkpoint as checkpoints
from flexmarl.orchestrator.checkpoint import Checkpoint
from flexmarl.orchestrator.evaluation import Evaluation
from flexmarl.orchestrator.inputs import Inputs
from flexmarl.orchestrator.plan import checkpoint_due, eval_due
from flexmarl.orchestrator.position import Position
from flexmarl.orchestrator.report import Report
from flexmarl.orchestrator.rundir import Phase, RunDir, lines
from flexmarl.orchestrator.step import Finished, Parts, Step
from flexmarl.orchestrator.training import Standing
from flexmarl.runtime.errors import JobFailedError

log = structlog.get_logger()


class Steps:
    """From `position` to the job's end; `keep` makes a new position the job's own."""

    def __init__(
        self,
        inputs: Inputs,
        parts: Parts,
        *,
        incarnation: int,
        position: Position,
        files: RunDir,
        report: Report,
        keep: Callable[[Position], Awaitable[None]],
    ) -> None:
        self._inputs, self._parts, self._incarnation = inputs, parts, incarnation
        self._position, self._keep = position, keep
        self._files, self._report = files, report
        self._evaluated: list[int] = []

    async def run(self, stored: frozenset[int]) -> None:
        """`stored`: what the store holds of the first step already."""
        known = await asyncio.to_thread(lines, self._files.evals)
        self._evaluated = [line["step"] for line in known]
        while self._position.step < self._inputs.job.spec.steps:
            await self._evaluate()
            await self._step(stored)
            stored = frozenset()
        await self._evaluate()

    async def _evaluate(self) -> None:
        """The version that the job stands at, unless that is not due or was done."""
        version = self._position.step
        if not eval_due(self._inputs.job.spec, version, self._evaluated):
            return
        evaluation = Evaluation(self._parts, self._incarnation, version, self._inputs.held_out)
        self._report.now(Phase.EVALUATING, version, groups=evaluation.groups)
        line = await evaluation.run()
        await asyncio.to_thread(self._files.append, self._files.evals, [line])
        self._evaluated.append(version)
        log.info("evaluated", version=version, seconds=round(line["seconds"], 2))

    async def _step(self, stored: frozenset[int]) -> None:
        position, number = self._position, self._position.step
        step = Step(self._parts, self._incarnation, self._inputs.tasks(number), stored)
        self._report.now(Phase.RUNNING, number, groups=step.groups)
        saving = self._checkpoint(number + 1)
        if saving is not None:
            await asyncio.to_thread(checkpoints.begin, saving.directory)
        standing = Standing(number, position.checkpoint, position.discard)
        finished = await step.run(standing, saving.directory if saving else None)
        await asyncio.to_thread(self._write, finished, saving)
        self._position = replace(
            position,
            step=number + 1,
            checkpoint=saving or position.checkpoint,
            idle=0 if finished.updated else position.idle + 1,
        )
        await self._keep(self._position)
        await self._parts.experience.close_step(self._incarnation, number)
        self._must_learn(finished)

    def _checkpoint(self, version: int) -> Checkpoint | None:
        """The one to be made at `version`, if any."""
        if not checkpoint_due(self._inputs.job.spec, version):
            return None
        last, uid = self._position.checkpoint, self._inputs.settings.job_uid
        before = tuple(name for name in (last.lineage if last else ()) if name != uid)
        directory = checkpoints.directory_of(self._inputs.checkpoints, version)
        return Checkpoint(directory, version, (*before, uid))

    def _write(self, finished: Finished, saving: Checkpoint | None) -> None:
        """In a thread."""
        self._files.append(self._files.metrics, [finished.line])
        self._files.append(self._files.episodes, finished.episodes)
        if saving is None:
            return
        checkpoints.finish(
            saving,
            {name: each.saved for name, each in finished.trained.items() if each.saved},
            self._inputs.cursor(saving.step),
            incarnation=self._incarnation,
        )
        keep = self._inputs.job.spec.checkpoint.keep
        gone = checkpoints.prune(self._inputs.checkpoints, keep, saving.lineage)
        log.info("checkpoint", step=saving.step, pruned=[directory.name for directory in gone])

    def _must_learn(self, finished: Finished) -> None:
        """JobFailedError after too many steps that taught nobody anything."""
        idle, number = self._position.idle, self._position.step - 1
        log.info("step", step=number, seconds=round(finished.line["seconds"]["step"], 3))
        if idle:
            log.warning("no policy was updated", step=number, in_a_row=idle)
        if idle >= self._inputs.limits.idle_steps:
            outcomes = finished.line["counts"]
            raise JobFailedError(
                f"no policy was updated in {idle} steps in a row, up to step {number}: the rewards "
                f"within each group were all equal or missing (last step: {outcomes}); the tasks "
                "are too easy or too hard, or the reward cannot tell answers apart"
            )
