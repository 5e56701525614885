"""The jobs of these tests: scripted engines in front of real training, in steps of a second or two.

Deterministic: whatever befalls such a job, it must end with the weights of one that nothing befell.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

Spec = dict[str, Any]
MODEL = {"uri": "random://llama?hidden=16&layers=1&heads=2&context=512"}
TASKS, GROUP = 3, 3
CODE = "team-code"
CODE_FILES = {
    path.name: path.read_text()
    for path in (Path(__file__).resolve().parents[1] / "jobs/user").glob("*.py")
}
"""What a team's workers import."""
STEPS = 8
GATED = {"spec": {"schedulingGates": [{"name": "flexmarl.io/test"}]}}
"""The template of pods that are made and never start: they cost nothing and stand in nobody's
way."""


def policy(name: str, **changes: Any) -> Spec:
    engine = {"medianTokens": 6, "p99Tokens": 12, "tokensPerSecond": 10}
    found = {
        "name": name,
        "model": MODEL,
        "engine": {"kind": "scripted", "scripted": engine},
        "training": {"lr": 1e-3},
    }
    return found | changes


def agent(name: str) -> Spec:
    return {"name": name, "policy": name, "sampling": {"maxTokens": 12}}


def team(steps: int = STEPS, **changes: Any) -> Spec:
    """Solver and verifier, each of its own policy, in one training slot."""
    names = ("solver", "verifier")
    spec = {
        "policies": [policy(name) for name in names],
        "agents": [agent(name) for name in names],
        "workflow": {"name": "solver-verifier"},
        "data": {"uri": "gym://chain_sum", "size": 64},
        "steps": steps,
        "seed": 5,
        "code": {"configMap": CODE},
        "reward": {"entrypoint": "team:early_letters"},
        "batch": {"tasksPerStep": TASKS, "groupSize": GROUP},
        "pipeline": {"deterministic": True},
        "checkpoint": {"everySteps": 2, "claim": {"size": "1Gi"}},
        "shm": {"size": "128Mi"},  # asked for: several such jobs are beside each other on a node
    }
    return copy.deepcopy(spec | changes)


def slow(steps: int = STEPS, *, speed: float) -> Spec:
    """The team at so many tokens a second: 1 makes steps of some ten seconds."""
    spec = team(steps)
    for one in spec["policies"]:
        one["engine"]["scripted"]["tokensPerSecond"] = speed
    return spec


def idle(**started: Spec) -> Spec:
    """A team of which only the named roles' pods start, with these templates."""
    roles = ("orchestrator", "worker", "engine", "trainer", "experience")
    spec = team(roles={role: {"template": started.get(role, GATED)} for role in roles})
    del spec["code"], spec["reward"]
    return spec


def code() -> Spec:
    """The ConfigMap of it."""
    metadata = {"name": CODE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": CODE_FILES}
