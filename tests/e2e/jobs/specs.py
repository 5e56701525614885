"""The job of most of these tests, and its parts: scripted engines in front of real training."""

from __future__ import annotations

import copy
from typing import Any

Spec = dict[str, Any]
STEPS = 12
MODEL = {"uri": "random://llama?hidden=16&layers=1&heads=2&context=512"}
SCRIPTED = {"kind": "scripted", "scripted": {"medianTokens": 6, "p99Tokens": 12}}
PACED = {
    "kind": "scripted",
    "scripted": {"medianTokens": 6, "p99Tokens": 12, "tokensPerSecond": 30},
}
"""Slow enough for a test to meet a turn in its middle."""
SAMPLING = {"maxTokens": 12}
LR = 1.0e-3


def policy(name: str, **changes: Any) -> Spec:
    """A trained one whose tokens are scripted, unless `changes` say otherwise."""
    return {"name": name, "model": MODEL, "engine": SCRIPTED, "training": {"lr": LR}} | changes


def agent(name: str, policy: str | None = None) -> Spec:
    return {"name": name, "policy": policy or name, "sampling": SAMPLING}


def job(workflow: Spec, policies: list[Spec], agents: list[Spec], **more: Any) -> Spec:
    """A job of one step, unless `more` says otherwise."""
    spec = {
        "policies": policies,
        "agents": agents,
        "workflow": workflow,
        "code": {"path": "."},
        "data": {"uri": "file://tasks.jsonl"},
        "reward": {"entrypoint": "team:early_letters"},
        "steps": 1,
        "batch": {"tasksPerStep": 4, "groupSize": 4},
    }
    return copy.deepcopy(spec | more)


def team() -> Spec:
    """Solver and verifier in deterministic steps of about a second, each of its own policy."""
    restarts = {"restartPolicy": {"max": 5, "backoff": 0.1}}
    roles = ("orchestrator", "worker", "engine", "trainer", "experience", "weights", "store")
    return job(
        {"name": "solver-verifier", "config": {"verifierPrompt": "{question} = {proposal}"}},
        [policy("solver", engine=PACED), policy("verifier", engine=PACED)],
        [agent("solver"), agent("verifier")],
        eval={"data": {"uri": "file://tasks.jsonl"}, "tasks": 2, "everySteps": 6},
        steps=STEPS,
        seed=5,
        batch={"tasksPerStep": 3, "groupSize": 3, "microBatch": 2},
        pipeline={"deterministic": True},
        checkpoint={"everySteps": 4},
        roles=dict.fromkeys(roles, restarts),
    )
