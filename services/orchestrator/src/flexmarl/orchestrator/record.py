"""What is written down of evaluations, steps and checkpoints, each once whoever wrote it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog

from flexmarl.orchestrator import checkpoint as checkpoints
from flexmarl.orchestrator.checkpoint import Checkpoint, Saved
from flexmarl.orchestrator.inputs import Inputs
from flexmarl.orchestrator.rundir import Line, RunDir, lines
from flexmarl.orchestrator.step import Finished

log = structlog.get_logger()


class Record:
    """Of one incarnation; `read` it first."""

    def __init__(self, files: RunDir, inputs: Inputs, incarnation: int) -> None:
        self._files, self._inputs, self._incarnation = files, inputs, incarnation
        self._spec = inputs.job.spec
        self.evaluated: list[int] = []
        """Versions."""
        self._last: Line | None = None
        """Metrics of the last finished step."""

    async def read(self) -> list[Line]:
        """What other incarnations wrote; the metrics of all finished steps."""
        self.evaluated = [
            line["step"] for line in await asyncio.to_thread(lines, self._files.evals)
        ]
        metrics = await asyncio.to_thread(lines, self._files.metrics)
        self._last = metrics[-1] if metrics else None
        return metrics

    async def evaluation(self, line: Mapping[str, Any]) -> None:
        await asyncio.to_thread(self._files.append, self._files.evals, [line])
        self.evaluated.append(line["step"])

    async def step(self, finished: Finished, saving: Checkpoint | None) -> Finished:
        """With the step's checkpoint, if any; what was written down of the step: by us or, before a
        crash, by another incarnation."""
        if self._last is not None and self._last["step"] == finished.line["step"]:
            finished = replace(finished, line=self._last, episodes=[])
        else:
            self._last = finished.line
            await asyncio.to_thread(self._append, finished)
        if saving is not None:
            await self.checkpoint(saving, finished.saved)
        return finished

    async def checkpoint(self, saving: Checkpoint, saved: Mapping[str, Saved]) -> None:
        """Make it complete; `saved` are all policies."""
        cursor = self._inputs.cursor(saving.step)
        await asyncio.to_thread(
            checkpoints.finish, saving, saved, cursor, incarnation=self._incarnation
        )

    async def prune(self, saving: Checkpoint) -> None:
        """Once the job stands at that one: until then it may fall back to another."""
        root, keep = self._inputs.checkpoints, self._spec.checkpoint.keep
        gone = await asyncio.to_thread(checkpoints.prune, root, keep, saving.lineage)
        log.info("checkpoint", step=saving.step, pruned=[directory.name for directory in gone])

    def _append(self, finished: Finished) -> None:
        self._files.append(self._files.episodes, finished.episodes, durable=False)
        self._files.append(self._files.metrics, [finished.line])  # with it the step is written down
