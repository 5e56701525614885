"""`bench start`: from `flexmarl run` to the first trained step, on a job of the user's."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from flexmarl.bench.child import run_of
from flexmarl.bench.measure import Measure, alone
from flexmarl.runtime.errors import JobFailedError

LONGEST_SECONDS = 300.0
POLL_SECONDS = 0.02
GOAL_SECONDS = 15.0


async def run(job: Path, rounds: int) -> list[Measure]:
    """Start `job` for one step, `rounds` times after one that warms the caches."""
    seconds = [await first_step(job) for _ in range(rounds + 1)]
    return [alone("start to first trained step", seconds[1:], "s", GOAL_SECONDS)]


async def first_step(job: Path) -> float:
    """Seconds from starting the command until the first line of metrics.jsonl."""
    run_dir = Path(tempfile.mkdtemp(prefix="flexmarl-bench-"))
    metrics = run_dir / "run" / "metrics.jsonl"
    arguments = ("--set", "spec.steps=1", "--run-dir", str(run_dir / "run"))
    began = time.perf_counter()
    try:
        async with run_of(str(job), *arguments) as process, asyncio.timeout(LONGEST_SECONDS):
            while not (metrics.exists() and metrics.stat().st_size):
                if process.returncode is not None:
                    _, errors = await process.communicate()
                    raise JobFailedError(f"{job}: {errors.decode(errors='replace').strip()}")
                await asyncio.sleep(POLL_SECONDS)
            return time.perf_counter() - began
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
