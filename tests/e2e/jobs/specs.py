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
QUICK: Spec = {"kind": "scripted", "scripted": PACED["scripted"] | {"tokensPerSecond": 60}}
SAMPLING = {"maxTokens": 12}
LR = 1.0e-3
ROLES = ("orchestrator", "worker", "engine", "trainer", "experience", "weights", "store")
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
        roles=dict.fromkeys(ROLES, restarts),
    )


def enduring(steps: int, *, engine: str = "scripted") -> Spec:
    """The team in short steps, with something of every kind in them, and restarts for all kills."""
    spec = team()
    for each in spec["policies"]:
        each["engine"] = copy.deepcopy(QUICK) if engine == "scripted" else {"kind": engine}
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


def unordered(spec: Spec) -> Spec:
    """The same with groups that are folded as they arrive. In float64: the order of a sum then
    changes too little for a real engine to say anything else."""
    found = copy.deepcopy(spec)
    for each in found["policies"]:
        each["model"] = MODEL | {"dtype": "float64"}
        each["engine"] = {"kind": "transformers"}
    return found | {"pipeline": {}, "batch": {"tasksPerStep": 4, "groupSize": 3}}


def choosy(spec: Spec) -> Spec:
    """The same with tasks that need one of the two only, now and then: who is through with a step
    plays the next one's, while the other, slower one still trains."""
    found, data = copy.deepcopy(spec), {"uri": "file://parties.jsonl"}
    found["workflow"] = {"entrypoint": "team:whoever_takes_part", "participants": "who"}
    found["eval"]["data"] = found["data"] = data
    del found["reward"]
    found["policies"][1]["training"] |= {"simulatedTokensPerSecond": 600}
    return found


def debaters(engine: Spec, steps: int, **more: Any) -> Spec:
    """Four policies that hear each other, in two slots; engines of their own."""
    names = ("ada", "ben", "cem", "dan")
    spec = job(
        {"name": "debate", "config": {"rounds": 2}},
        [policy(name, engine=engine) for name in names],
        [agent(name) for name in names],
        steps=steps,
        seed=3,
        eval={"data": {"uri": "file://tasks.jsonl"}, "tasks": 2},
        batch={"tasksPerStep": 3, "groupSize": 3, "microBatch": 1},
        pipeline={"deterministic": True},
        roles=dict.fromkeys(ROLES, TIRELESS) | {"trainer": TIRELESS | {"replicas": 2}},
    )
    return copy.deepcopy(spec | more)


def pooled(spec: Spec, engines: int, *, slots: int = 0) -> Spec:
    """The same with so many engines for all, and slots of a pool unless 0."""
    found = copy.deepcopy(spec)
    found["pools"] = [{"name": "few", "role": "engine", "min": engines, "max": engines}]
    found["balancing"] = {"hysteresisSeconds": 0.5}
    if slots:
        found["pools"].append({"name": "slots", "role": "trainer", "min": slots, "max": slots})
    for each in found["policies"]:
        each["pools"] = [pool["name"] for pool in found["pools"]]
    return found


def replicated(spec: Spec) -> Spec:
    """Two of each kind of process that there may be several of."""
    two = {name: TIRELESS | {"replicas": 2} for name in ("worker", "engine", "trainer")}
    return copy.deepcopy(spec) | {"roles": spec["roles"] | two}
