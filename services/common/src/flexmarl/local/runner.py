"""One process of a local job: started, watched, restarted within its policy."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexmarl.local.forks import ColdError, WarmParent
from flexmarl.local.plan import ProcessPlan, next_restart
from flexmarl.local.system import Child, describe_exit, last_lines, spawn
from flexmarl.runtime.process import HOPELESS

READY_POLL_SECONDS = 0.05
START_SECONDS = 5.0
"""How long others wait with their start for one that is starting: more at once take longer."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended for good: by itself (code 0), or beyond its restarts."""

    process: str
    exit_code: int
    restarts: int
    last_words: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return self.process == "orchestrator" and self.exit_code == 0

    @property
    def message(self) -> str:
        """For a person: the reason in the process's own words."""
        if self.exit_code == HOPELESS and self.last_words:
            return f"{self.process}: {self.last_words[-1]}"
        after = f" after {self.restarts} restarts" if self.restarts else ""
        words = "".join(f"\n  {line}" for line in self.last_words) or " and said nothing"
        return f"{self.process} ended ({describe_exit(self.exit_code)}){after}:{words}"


class Runner:
    """Keeps one process running."""

    def __init__(
        self,
        plan: ProcessPlan,
        module: str,
        environment: Mapping[str, str],
        log: Path,
        *,
        warm: WarmParent | None,
        gate: asyncio.Semaphore,
        started: Callable[[Child], None],
        say: Say,
    ) -> None:
        self.plan = plan
        self.ready = asyncio.Event()
        """Set while it listens on its socket."""
        self._module, self._environment, self._log = module, environment, log
        self._warm, self._gate, self._started, self._say = warm, gate, started, say

    async def run(self) -> Ended:
        """Returns when it has ended for good: the job is complete, or the policy allows no more."""
        name, policy, restarts = self.plan.name, self.plan.restart_policy, 0
        while True:
            begin = self._log.stat().st_size if self._log.exists() else 0
            code = await self._once(first=restarts == 0)
            words = last_lines(self._log, begin)
            # Only the orchestrator ends by itself when all is well.
            final = code == HOPELESS or (code == 0 and self.plan.role == "orchestrator")
            delay = None if final else next_restart(policy, restarts)
            if delay is None:
                return Ended(name, code, restarts, tuple(words))
            restarts += 1
            reason = f": {words[-1]}" if words else ""
            self._say(
                f"{name} ended ({describe_exit(code)}){reason}; "
                f"restart {restarts} of {policy.max} in {delay:g} s"
            )
            await asyncio.sleep(delay)

    async def _once(self, *, first: bool) -> int:
        """Start it and wait for its end; the exit code."""
        gated = first and self._warm is None
        async with self._gate if gated else contextlib.nullcontext():
            child = Child(await self._start())
            self._started(child)
            watching = asyncio.create_task(self._watch_socket())
            if gated:
                first_of: set[asyncio.Future[Any]] = {child.ended, watching}
                await asyncio.wait(
                    first_of, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
        try:
            # Shielded: the end of a process is also awaited by who stops it after this task.
            return await asyncio.shield(child.ended)
        finally:
            watching.cancel()
            self.ready.clear()

    async def _start(self) -> int:
        if self._warm is not None:
            try:
                return await self._warm.fork(
                    self.plan.name, self._module, self._environment, self._log
                )
            except ColdError as error:
                self._say(f"{self.plan.name} starts slowly, the warm parent failed: {error}")
        arguments = ["-m", "flexmarl.local.child", self.plan.name, self._module, str(os.getpid())]
        return spawn(arguments, self._environment, self._log)

    async def _watch_socket(self) -> None:
        """Set `ready` once something listens at the process's address."""
        path = self.plan.settings["FLEXMARL_LISTEN"].removeprefix("unix://")
        while True:
            try:
                _, writer = await asyncio.open_unix_connection(path)
            except (FileNotFoundError, ConnectionError):
                await asyncio.sleep(READY_POLL_SECONDS)
            else:
                writer.close()
                self.ready.set()
                return
