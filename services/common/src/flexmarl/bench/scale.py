"""`bench scale`: what 64 engines, 8 policies and 2,000 episodes in flight cost the middle.

Engines and training are scripted and slow, so that what is measured is the orchestrator and the
worker: processor time per second of the job, and the largest resident memory.
"""

from __future__ import annotations

import asyncio
import os
import time
from itertools import accumulate
from pathlib import Path

from flexmarl.bench.measure import Measure, alone
from flexmarl.bench.simulated import Line, chain_job, run_job

POLICIES, ENGINES = 8, 8
TASKS, GROUP = 250, 8
STEPS = 2
SCRIPTED = {"medianTokens": 16, "p99Tokens": 48, "tokensPerSecond": 2}
"""Eight turns of 8 s: about 250 turns a second of all episodes together."""
LOOK_SECONDS = 0.5
CORES, MEMORY_GIB = 1.0, 2.0
ROLES = ("orchestrator", "rollout-worker-0", "experience", "store")


class Usage:
    """Processor seconds and peak memory of a job's processes, by name, looked at while it runs."""

    def __init__(self) -> None:
        self.cores: dict[str, list[float]] = {}
        self.peak_gib: dict[str, float] = {}

    async def watch(self, run_dir: Path) -> None:
        seen: dict[str, tuple[int, float, float]] = {}
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            for name, pid in await asyncio.to_thread(processes, run_dir):
                spent, gib = usage(pid)
                before = seen.get(name)
                if before and before[0] == pid and now > before[2]:
                    share = (spent - before[1]) / (now - before[2])
                    self.cores.setdefault(name, []).append(share)
                seen[name] = (pid, spent, now)
                self.peak_gib[name] = max(gib, self.peak_gib.get(name, 0.0))


def processes(run_dir: Path) -> list[tuple[str, int]]:
    """Name and pid of the job's processes that were started by a command of their own."""
    found = []
    marker = f"FLEXMARL_RUN_DIR={run_dir}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"flexmarl.local.child" in words and marker in (entry / "environ").read_bytes():
                name = words[words.index(b"flexmarl.local.child") + 1].decode()
                found.append((name, int(entry.name)))
        except OSError:  # it ended meanwhile
            continue
    return found


def usage(pid: int) -> tuple[float, float]:
    """Processor seconds so far and resident GiB of a process; zeros when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
        ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
    except (OSError, IndexError):
        return 0.0, 0.0
    seconds = ticks / os.sysconf("SC_CLK_TCK")
    return seconds, pages * os.sysconf("SC_PAGE_SIZE") / (1 << 30)


async def run() -> list[Measure]:
    """One job of a few steps."""
    used = Usage()
    job = chain_job(
        POLICIES,
        {"tasksPerStep": TASKS, "groupSize": GROUP},
        steps=STEPS,
        scripted=SCRIPTED,
        roles={"engine": {"replicas": ENGINES}},
        workflow={
            "name": "planner-executor",
            "config": {
                "planner": "p0",
                "plannerPrompt": "{question}",
                "executorPrompt": "{question}",
            },
            "timeout": 3600,
        },
        store={"maxMemoryMib": 1024},
    )
    lines = await run_job(job, used.watch)
    episodes = sum(line["counts"].get("ok", 0) for line in lines)
    seconds = lines[-1]["time"] - (lines[0]["time"] - lines[0]["seconds"]["step"])
    return [
        alone("orchestrator", _busy(used.cores["orchestrator"]), "cores", CORES),
        alone("worker, peak memory", [used.peak_gib["rollout-worker-0"]], "GiB", MEMORY_GIB),
        alone("worker", _busy(used.cores["rollout-worker-0"]), "cores"),
        alone("experience service", _busy(used.cores["experience"]), "cores"),
        alone("episodes per second", [episodes / seconds], "1/s"),
        alone("episodes in flight at most", [GROUP * most_at_once(line) for line in lines], ""),
    ]


def most_at_once(line: Line) -> int:
    """Groups of a step that were in flight together, all of whose episodes begin as one."""
    moments = [(group["began"], 1) for group in line["groups"]]
    moments += [(group["played"], -1) for group in line["groups"]]
    return max(accumulate(change for _, change in sorted(moments)))


def _busy(shares: list[float]) -> list[float]:
    """While the job ran: what is near nothing was before the first or after the last group."""
    return [share for share in shares if share > max(shares) / 100] or [0.0]
