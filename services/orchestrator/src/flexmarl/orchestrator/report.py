"""Keeps `progress.json` fresh while the event loop works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from prometheus_client import Gauge

from flexmarl.orchestrator.desk import Desk
from flexmarl.orchestrator.rundir import Phase, RunDir

STEP = Gauge("flexmarl_orchestrator_step", "The step in progress; at the end, all of them.")
SECONDS = 0.25
"""Between two looks at whether anything changed."""

MOST, LONGEST = 3, 200
"""Of those that are waited for, and characters of each."""

Counts = Callable[[], tuple[int, int]]
"""Groups done, and all of them."""


class Report:
    """What is to be said now; `run` says it."""

    def __init__(self, files: RunDir, steps: int, desk: Desk) -> None:
        self._files, self._steps, self._desk = files, steps, desk
        self._phase, self._step, self._message = Phase.STARTING, 0, ""
        self._groups: Counts | None = None
        self._awaited: Callable[[], Sequence[str]] = tuple
        self._said: dict[str, object] = {}
        self._serial = 0

    def now(
        self, phase: Phase, step: int | None = None, message: str = "", groups: Counts | None = None
    ) -> None:
        self._phase, self._message, self._groups = phase, message, groups
        if step is not None:
            self._step = step
            STEP.set(step)

    def waits_for(self, who: Callable[[], Sequence[str]]) -> None:
        """From now on `who` says who is away."""
        self._awaited = who

    async def say(self) -> None:
        """Write it unless that has been said."""
        done, total = self._groups() if self._groups else (0, 0)
        value: dict[str, object] = {
            "phase": self._phase.value,
            "step": self._step,
            "steps": self._steps,
            "groups_done": done,
            "groups_total": total,
            "message": self._words(),
        }
        if value != self._said:
            self._said, self._serial = value, self._serial + 1
            self._desk.said = value
            told = value | {"time": time.time()}
            await asyncio.to_thread(self._files.progress, self._serial, told)

    def _words(self) -> str:
        away = () if self._phase in (Phase.COMPLETE, Phase.FAILED) else self._awaited()
        if not away:
            return self._message
        shown = ", ".join(
            one if len(one) <= LONGEST else f"{one[:LONGEST]}..." for one in away[:MOST]
        )
        more = f" and {len(away) - MOST} more" if len(away) > MOST else ""
        return "; ".join(filter(None, (self._message, f"waiting for {shown}{more}")))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.say()
            await asyncio.sleep(SECONDS)
