"""Which processes a job needs on one machine, with which settings; and when one is restarted.

Pure: nothing is started here.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexmarl.contracts.job import MARLJob, MARLJobSpec, RestartPolicy
from flexmarl.contracts.policy import EngineKind
from flexmarl.contracts.slots import training_slots

LONGEST_BACKOFF = 30.0


@dataclass(frozen=True, slots=True)
class LocalLayout:
    """Where the processes of one run find each other. Paths are absolute."""

    job_file: Path
    base_dir: Path
    run_dir: Path
    sockets: Path
    shm_dir: Path
    job_uid: str
    token: str
    store_password: str
    resume_from: Path | None = None
    drain_seconds: float = 4.0

    def socket(self, process: str) -> Path:
        return self.sockets / f"{process}.sock"

    def address(self, process: str) -> str:
        return f"unix://{self.socket(process)}"


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    name: str
    role: str
    settings: Mapping[str, str]
    """The FLEXMARL_ variables, by their full names."""
    restart_policy: RestartPolicy
    heavy: bool
    """Imports torch and transformers: forked from the warm parent that has them already."""


def plan_processes(job: MARLJob, layout: LocalLayout) -> list[ProcessPlan]:
    """Every process of the job, in starting order. None waits for another: they find each other."""
    spec, roles = job.spec, job.spec.roles
    workers = [f"rollout-worker-{i}" for i in range(roles.worker.replicas)]
    may_train = _trainers(spec)
    trainers = list(may_train)
    shared = _shared_engines(spec)
    pooled = {policy for policies in spec.engine_pools.values() for policy in policies}
    engines = {
        policy: [f"engine-{policy}-{i}" for i in range(roles.engine.replicas)]
        for policy in spec.local_policies
        if policy not in pooled
    }
    experience = {"experience": layout.address("experience")}
    weights = {"weights": layout.address("weights")} if trainers else {}
    store = {}
    if spec.store.url is None:
        store = {"store_url": f"unix://job:{layout.store_password}@{layout.socket('store')}"}

    def plan(
        name: str, role: str, policy: RestartPolicy, own: Mapping[str, Any], *, heavy: bool = False
    ) -> ProcessPlan:
        values = {**_common(layout), "listen": layout.address(name), **own}
        settings = {f"FLEXMARL_{key.upper()}": _text(value) for key, value in values.items()}
        return ProcessPlan(name, role, settings, policy, heavy)

    plans = []
    if store:
        plans.append(plan("store", "store", roles.store.restart_policy, store))
    plans.append(plan("experience", "experience", roles.experience.restart_policy, store))
    if trainers:
        plans.append(plan("weights", "weights", roles.weights.restart_policy, {}))
    for what, name_of, names in (
        *(("policy", policy, names) for policy, names in engines.items()),
        *(("pool", pool, names) for pool, names in shared.items()),
    ):
        like = name_of if what == "policy" else spec.engine_pools[name_of][0]
        heavy = spec.policy(like).engine.kind is EngineKind.TRANSFORMERS
        own = weights | {what: name_of}
        plans += [
            plan(name, "engine", roles.engine.restart_policy, own, heavy=heavy) for name in names
        ]
    plans += [
        plan(name, "trainer", roles.trainer.restart_policy, experience | weights, heavy=True)
        for name in trainers
    ]
    plans += [
        plan(name, "rollout-worker", roles.worker.restart_policy, experience) for name in workers
    ]
    everyone = experience | {
        "workers": _addresses(layout, workers),
        "trainers": _addresses(layout, trainers),
        "engines": {policy: _addresses(layout, names) for policy, names in engines.items()},
        "pools": {pool: _addresses(layout, names) for pool, names in shared.items()},
        "slot_policies": {
            layout.address(name): policies for name, policies in may_train.items() if policies
        },
        "resume_from": str(layout.resume_from or ""),
    }
    plans.append(plan("orchestrator", "orchestrator", roles.orchestrator.restart_policy, everyone))
    return plans


def _shared_engines(spec: MARLJobSpec) -> dict[str, list[str]]:
    """Of each pool, its least: there is nobody to start more."""
    least = {pool.name: pool.min for pool in spec.pools}
    return {pool: [f"engine-{pool}-{i}" for i in range(least[pool])] for pool in spec.engine_pools}


def _trainers(spec: MARLJobSpec) -> dict[str, list[str]]:
    """Each slot, with the policies that it may train; none named: any."""
    found: dict[str, list[str]] = {}
    slots = training_slots(spec)
    for at, count in slots.items():
        stem = f"trainer-{at.pool}" if at.pool else "trainer"
        allowed = list(at.policies) if len(slots) > 1 else []
        found |= {f"{stem}-{i}": allowed for i in range(count)}
    return found


def _common(layout: LocalLayout) -> dict[str, Any]:
    return {
        "job_file": layout.job_file,
        "base_dir": layout.base_dir,
        "run_dir": layout.run_dir,
        "shm_dir": layout.shm_dir,
        "job_uid": layout.job_uid,
        "token": layout.token,
        "drain_seconds": layout.drain_seconds,
    }


def _addresses(layout: LocalLayout, names: Iterable[str]) -> list[str]:
    return [layout.address(name) for name in names]


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def next_restart(policy: RestartPolicy, restarts: int) -> float | None:
    """Seconds to wait before the next restart after `restarts` of them; None: no more."""
    if restarts >= policy.max:
        return None
    # The exponent is bounded: 2.0 ** 1024 is no float any more.
    return float(min(LONGEST_BACKOFF, policy.backoff * 2.0 ** min(restarts, 20)))
