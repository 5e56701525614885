"""Keeps `progress.json` fresh while the event loop works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from prometheus_client import Gauge

from flexmarl.orchestrator.desk import Desk
from flexmarl.orchestrator.rundir import Phase, RunDir

STEP = Gauge("flexmarl_orchestrator_step", "The step in progress; at the end, all of them.")
SECONDS = 0.25
"""Between two looks at whether anything changed."""

Counts = Callable[[], tuple[int, int]]
"""Groups done, and all of them."""


class Report:
    """What is to be said now; `run` says it."""

    def __init__(self, files: RunDir, steps: int, desk: Desk) -> None:
        self._files, self._steps, self._desk = files, steps, desk
        self._phase, self._step, self._message = Phase.STARTING, 0, ""
        self._groups: Counts | None = None
        self._said: dict[str, object] = {}
        self._serial = 0

    def now(
        self, phase: Phase, step: int | None = None, message: str = "", groups: Counts | None = None
    ) -> None:
        self._phase, self._message, self._groups = phase, message, groups
        if step is not None:
            self._step = step
            STEP.set(step)

    async def say(self) -> None:
        """Write it unless that has been said."""
        done, total = self._groups() if self._groups else (0, 0)
        value: dict[str, object] = {
            "phase": self._phase.value,
            "step": self._step,
            "steps": self._steps,
            "groups_done": done,
            "groups_total": total,
            "message": self._message,
        }
        if value != self._said:
            self._said, self._serial = value, self._serial + 1
            self._desk.said = value
            told = value | {"time": time.time()}
            await asyncio.to_thread(self._files.progress, self._serial, told)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.say()
            await asyncio.sleep(SECONDS)
