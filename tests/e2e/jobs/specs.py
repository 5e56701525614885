"""The job of most of these tests, and its parts: scripted engines in front of real training."""

from __future__ import annotations

import copy
from typing import Any

Spec = dict[str, Any]
STEPS = 12
MODEL = {"uri": "random://llama?hidden=16&layers=1&heads=2&context=512"}
SCRIPTED = {"kind": "scripted", "scripted": {"medianTokens": 6, "p99Tokens": 12}}
PACED: Spec = {
    "kind": "scripted",
    "scripted": {"medianTokens": 6, "p99Tokens": 12, "tokensPerSecond": 30},
}
"""Slow enough for a test to meet a turn in its middle."""
SAMPLING = {"maxTokens": 12}
LR = 1.0e-3
TIRELESS = {"restartPolicy": {"max": 10_000, "backoff": 1e-6}}
"""The backoff doubles with each restart; this one never gets long."""


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


def enduring(steps: int, *, engine: str = "scripted") -> Spec:
    """The team in short steps, with something of every kind in them, and restarts for all kills."""
    spec = team()
    paced: Spec = copy.deepcopy(PACED)
    paced["scripted"]["tokensPerSecond"] = 60
    for each in spec["policies"]:
        each["engine"] = paced if engine == "scripted" else {"kind": engine}
        each["training"] = {"lr": LR, "simulatedTokensPerSecond": 1000}
    spec |= {"steps": steps, "checkpoint": {"everySteps": 3}}
    spec["eval"]["everySteps"] = 4
    spec["roles"] = dict.fromkeys(spec["roles"], TIRELESS)
    return spec


def stale(steps: int, bound: int, **pipeline: Any) -> Spec:
    """Lengths differ, so that groups overtake each other."""
    spec = enduring(steps)
    for each in spec["policies"]:
        each["engine"]["scripted"] |= {"medianTokens": 6, "p99Tokens": 40}
    for each in spec["agents"]:
        each["sampling"] = {"maxTokens": 40}
    return spec | {"pipeline": {"maxStaleness": bound} | pipeline}


def one_after_the_other(spec: Spec) -> Spec:
    """The same, but that nothing is folded before the whole step is played: deterministic jobs
    train the very same."""
    return spec | {"pipeline": spec["pipeline"] | {"overlap": False}}


def selecting(spec: Spec) -> Spec:
    """The same with groups that are dropped, chosen by difficulty, trained again, and trained in
    several updates."""
    more = {
        "filter": {"entrypoint": "team:odd"},
        "difficulty": {"candidates": 2},
        "replay": {"share": 0.67, "maxAge": 2},
    }
    return spec | {
        "pipeline": spec["pipeline"] | more,
        "batch": spec["batch"] | {"microBatch": 1, "updatesPerStep": 3},
    }


def replicated(spec: Spec) -> Spec:
    """Two of each kind of process that there may be several of."""
    two = {name: TIRELESS | {"replicas": 2} for name in ("worker", "engine", "trainer")}
    return copy.deepcopy(spec) | {"roles": spec["roles"] | two}
