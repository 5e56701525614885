"""Run directories as the orchestrator writes them."""

import json
from pathlib import Path
from typing import Any

from flexmarl.contracts.documents import dump

MODEL = {"uri": "random://llama?hidden=64&layers=2&heads=4"}
Line = dict[str, Any]


def job(**spec: Any) -> dict[str, Any]:
    """A document that holds, over data files that `write_data` makes."""
    return {
        "apiVersion": "flexmarl.io/v1alpha1",
        "kind": "MARLJob",
        "metadata": {"name": "digits"},
        "spec": {
            "steps": 4,
            "policies": [{"name": name, "model": MODEL} for name in ("solver", "verifier")],
            "agents": [
                {"name": name, "policy": name, "sampling": {"maxTokens": 2}}
                for name in ("solver", "verifier")
            ],
            "workflow": {"name": "solver-verifier"},
            "data": {"uri": "file://train.jsonl"},
            "eval": {"data": {"uri": "file://held-out.jsonl"}},
            **spec,
        },
    }


def write_job(folder: Path, **spec: Any) -> Path:
    """job.yaml and its data in `folder`; the path of the job."""
    record = json.dumps({"question": "1 2 3", "answer": "3"})
    for name in ("train", "held-out"):
        (folder / f"{name}.jsonl").write_text(f"{record}\n" * 3)
    path = folder / "job.yaml"
    path.write_text(dump(job(**spec)))
    return path


def metric(step: int, **more: Any) -> Line:
    return {
        "step": step,
        "time": 1000.0 + step,
        "seconds": {"step": 2.0, "rollout": 1.0, "train": 0.75, "sync": 0.25, "checkpoint": 0.0},
        "tokens": {"prompt": 900, "sampled": 100},
        "agents": {
            "solver": {"reward": 0.25 * step, "accuracy": 0.25 * step, "scored": 8},
            "verifier": {"reward": 0.5, "accuracy": None, "scored": 0, "unscorable": 8},
        },
        "policies": {
            name: {"version": step + 1, "loss": 0.5, "grad_norm": 1.0, "lr": 1e-3}
            for name in ("solver", "verifier")
        },
        **more,
    }


def evaluation(step: int, accuracy: float) -> Line:
    agents = {name: {"accuracy": accuracy, "reward": accuracy} for name in ("solver", "verifier")}
    return {"step": step, "time": 1.0, "seconds": 1.0, "agents": agents}


def episode(step: int, number: int, text: str = "3") -> Line:
    return {
        "step": step,
        "index": 0,
        "episode": number,
        "task_id": "7",
        "task": {"question": "1 2 3", "answer": "3", "metadata": {"a": 1}},
        "outcome": "ok",
        "agents": {"solver": 1.0, "verifier": None},
        "turns": [
            {
                "agent": "solver",
                "messages": [{"role": "user", "content": "1 2 3"}],
                "text": text,
                "finish_reason": "length",
                "tokens": 2,
            }
        ],
    }


def lines(values: list[Line]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def progress(root: Path, phase: str, step: int, steps: int = 4, message: str = "") -> None:
    value = {"phase": phase, "step": step, "steps": steps, "groups_done": 1, "groups_total": 2}
    (root / "progress.json").write_text(json.dumps({**value, "time": 1.0, "message": message}))


def write_run(root: Path, *, steps: int = 4, phase: str = "Complete") -> Path:
    """A run with `steps` finished steps."""
    root.mkdir(parents=True, exist_ok=True)
    write_job(root)
    progress(root, phase, steps)
    (root / "metrics.jsonl").write_text(lines([metric(step) for step in range(steps)]))
    (root / "evals.jsonl").write_text(lines([evaluation(0, 0.375), evaluation(steps, 0.9)]))
    played = [episode(step, number) for step in range(steps) for number in range(2)]
    (root / "episodes.jsonl").write_text(lines(played))
    return root
