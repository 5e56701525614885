"""All processes of one run together: started, watched, stopped in drain order, cleaned up after."""

import asyncio
import contextlib
import glob
import os
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flexmarl.local import guardian
from flexmarl.local.forks import WarmParent, python_environment
from flexmarl.local.plan import LocalLayout, ProcessPlan
from flexmarl.local.roles import DRAIN_ORDER
from flexmarl.local.runner import Ended, Runner, Say
from flexmarl.local.system import Child, adopting_orphans, child_pids, end, spawn
from flexmarl.tensors.holding import PREFIX

KILL_SECONDS = 5.0
"""A killed process is gone sooner, unless the kernel is stuck with it."""


class Crew:
    def __init__(
        self,
        plans: Sequence[ProcessPlan],
        layout: LocalLayout,
        modules: Mapping[str, str],
        say: Say,
    ) -> None:
        """`modules`: role -> module whose `main()` is the process."""
        self._plans, self._layout, self._modules, self._say = plans, layout, modules, say
        self._environment = python_environment(os.environ)
        self._children: dict[Child, str] = {}
        """Those that live, with their roles."""
        self._guardian: Child | None = None
        self._to_guardian = -1
        self._warm: WarmParent | None = None
        self._runners: list[Runner] = []
        self._tasks: list[asyncio.Task[Ended]] = []

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> Ended | None:
        """Until a process has ended for good, or `stop` (None). Nothing is left then.

        `hurry` cuts the orderly end short.
        """
        strangers = child_pids()
        with adopting_orphans():
            try:
                self._start_guardian()
                self._layout.sockets.mkdir(mode=0o700)
                await self._start()
                return await self._first_end(stop)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await self._stop(hurry)
                await self._reap(strangers)
                shutil.rmtree(self._layout.sockets, ignore_errors=True)
                await self._dismiss_guardian()

    async def _start(self) -> None:
        logs = self._layout.run_dir / "logs"
        if any(plan.heavy for plan in self._plans):
            self._warm = WarmParent(
                self._environment, logs / "warm.log", lambda child: self._add(child, "warm")
            )
            await self._warm.start()
        # The warm parent is busy for longest and has a core to itself; the others share the rest.
        cores = len(os.sched_getaffinity(0))
        gate = asyncio.Semaphore(max(1, cores - 1 if self._warm else cores))
        self._runners = [self._runner(plan, gate, logs) for plan in self._plans]
        self._tasks = [asyncio.create_task(runner.run()) for runner in self._runners]

    def _runner(self, plan: ProcessPlan, gate: asyncio.Semaphore, logs: Path) -> Runner:
        return Runner(
            plan,
            self._modules[plan.role],
            {**self._environment, **plan.settings},
            logs / f"{plan.name}.log",
            warm=self._warm if plan.heavy else None,
            gate=gate,
            started=lambda child: self._add(child, plan.role),
            say=self._say,
        )

    async def _first_end(self, stop: asyncio.Event) -> Ended | None:
        stopping = asyncio.create_task(stop.wait())
        announcing = asyncio.create_task(self._announce())
        try:
            waiting: set[asyncio.Task[Any]] = {*self._tasks, stopping}
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            # The job's own end counts most: others may have died of it.
            ends = [task.result() for task in self._tasks if task in done]
            return max(ends, key=lambda ended: ended.process == "orchestrator", default=None)
        finally:
            for task in (stopping, announcing):
                task.cancel()
            await asyncio.gather(stopping, announcing, return_exceptions=True)

    async def _announce(self) -> None:
        started = time.monotonic()
        for runner in self._runners:
            await runner.ready.wait()
        seconds = time.monotonic() - started
        self._say(f"all {len(self._runners)} processes are ready after {seconds:.1f} s")

    def _add(self, child: Child, role: str) -> None:
        self._children[child] = role
        self._tell_guardian(f"+{child.pid}")

        def remove(_: object) -> None:
            del self._children[child]
            self._tell_guardian(f"-{child.pid}")

        child.ended.add_done_callback(remove)

    async def _stop(self, hurry: asyncio.Event) -> None:
        """Ask role after role to stop; kill what does not within its time."""
        if self._warm is not None:
            await self._warm.close()
        for roles in DRAIN_ORDER:
            stage = [child for child, role in self._children.items() if role in roles]
            for child in stage:
                child.terminate()
            await self._wait(stage, self._layout.drain_seconds + 2, hurry)
            for child in stage:
                child.kill()
            await self._wait(stage, KILL_SECONDS)

    async def _wait(
        self, children: Iterable[Child], seconds: float, hurry: asyncio.Event | None = None
    ) -> None:
        """Until all have ended, `seconds` have passed or there is a hurry."""
        waiting = [child.ended for child in children]
        if not waiting:
            return
        ending = asyncio.create_task(asyncio.wait(waiting))
        hurrying = asyncio.create_task(hurry.wait() if hurry else asyncio.sleep(seconds))
        both: set[asyncio.Task[Any]] = {ending, hurrying}
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)

    async def _reap(self, strangers: Collection[int]) -> None:
        """End what processes had started and left behind: it has become ours."""
        deadline = time.monotonic() + KILL_SECONDS
        known = {*strangers, self._guardian.pid if self._guardian else 0}
        while (left := child_pids() - known) and time.monotonic() < deadline:
            for pid in left:
                end(pid)
            await asyncio.sleep(0.02)

    def _start_guardian(self) -> None:
        receiving, self._to_guardian = os.pipe()
        escaped = glob.escape(str(self._layout.shm_dir / f"{PREFIX}{self._layout.job_uid}."))
        paths = [glob.escape(str(self._layout.sockets)), f"{escaped}*"]
        pid = spawn(
            ["-I", "-S", str(Path(guardian.__file__)), *paths],
            self._environment,
            self._layout.run_dir / "logs" / "supervisor.log",
            stdin=receiving,
        )
        os.close(receiving)
        self._guardian = Child(pid)

    def _tell_guardian(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # killed: the kernel still ties all to us
            os.write(self._to_guardian, f"{line}\n".encode())

    async def _dismiss_guardian(self) -> None:
        if self._guardian is not None:
            self._tell_guardian("bye")
            os.close(self._to_guardian)
            await self._wait([self._guardian], KILL_SECONDS)
            self._guardian.kill()
