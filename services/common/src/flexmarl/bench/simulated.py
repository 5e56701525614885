"""Jobs whose every token is scripted and whose training takes a set time, run by `flexmarl run`.

The whole system is real: orchestrator, workers, store, trainers with tiny models. Only the speed of
sampling and of training is simulated, so that two cores show what many accelerators would.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from flexmarl.bench.child import run_of
from flexmarl.contracts.api import API_VERSION
from flexmarl.rollout.api import Episode, Task
from flexmarl.runtime.errors import JobFailedError

LONGEST_SECONDS = 900.0
TASKS = 512
Line = Mapping[str, Any]


def parity(task: Task, episode: Episode) -> float:
    """A reward that differs between episodes: whether the last text has an odd length."""
    return float(len(episode.turns[-1].text) % 2)


def chain_job(
    policies: int,
    batch: Mapping[str, int],
    *,
    steps: int,
    scripted: Mapping[str, float],
    **more: Any,
) -> dict[str, Any]:
    """A chain of `policies` agents, each of its own policy and with one turn per episode."""
    names = [f"p{number}" for number in range(policies)]
    tokens = int(scripted["medianTokens"] * 20)
    return {
        "apiVersion": API_VERSION,
        "kind": "MARLJob",
        "metadata": {"name": "bench"},
        "spec": {
            "policies": [
                {
                    "name": name,
                    "model": {"uri": "random://llama?hidden=8&layers=1&heads=1&context=4096"},
                    "engine": {"kind": "scripted", "scripted": dict(scripted)},
                    "training": {"lr": 1e-4},
                }
                for name in names
            ],
            "agents": [
                {"name": name, "policy": name, "sampling": {"maxTokens": tokens}} for name in names
            ],
            "workflow": {
                "name": "planner-executor",
                "config": {
                    "planner": names[0],
                    "plannerPrompt": "{question}",
                    "executorPrompt": "{question}",
                },
            },
            "reward": {"entrypoint": "flexmarl.bench.simulated:parity"},
            "data": {"uri": "file://tasks.jsonl"},
            "steps": steps,
            "batch": dict(batch),
            "checkpoint": {"everySteps": steps},
            **more,
        },
    }


async def run_job(
    document: Mapping[str, Any], watch: Callable[[Path], Coroutine[Any, Any, None]] | None = None
) -> list[Line]:
    """The metrics of a whole run of `document`; `watch` runs beside it, given its run directory.

    JobFailedError: it failed, in its own words.
    """
    directory = Path(tempfile.mkdtemp(prefix="flexmarl-bench-"))
    try:
        file, run_dir = directory / "job.yaml", directory / "run"
        file.write_text(json.dumps(dict(document)))  # which is YAML, too
        tasks = (json.dumps({"question": f"{number}", "answer": ""}) for number in range(TASKS))
        (directory / "tasks.jsonl").write_text("\n".join(tasks) + "\n")
        async with (
            run_of(str(file), "--run-dir", str(run_dir)) as process,
            asyncio.TaskGroup() as group,
        ):
            watching = group.create_task(watch(run_dir)) if watch else None
            async with asyncio.timeout(LONGEST_SECONDS):
                _, errors = await process.communicate()
            if watching is not None:
                watching.cancel()
        if process.returncode:
            raise JobFailedError(errors.decode(errors="replace").strip())
        text = (run_dir / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
