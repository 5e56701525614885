"""How many training slots a job has, and whom each may train; pure."""

from __future__ import annotations

from dataclasses import dataclass

from flexmarl.contracts.cluster import PoolRole
from flexmarl.contracts.job import MARLJobSpec


@dataclass(frozen=True, slots=True, order=True)
class Slots:
    """The training slots of one pool (`""`: of none)."""

    pool: str
    policies: tuple[str, ...]


def training_slots(spec: MARLJobSpec) -> dict[Slots, int]:
    """As many from a job's start to its end."""
    users: dict[str, list[str]] = {}
    for policy in spec.trained_policies:
        pool = spec.pool_of(policy, PoolRole.TRAINER)
        users.setdefault(pool.name if pool else "", []).append(policy)
    limits = {pool.name: (pool.min, pool.max) for pool in spec.pools}
    found = {}
    for name, policies in users.items():
        count = spec.roles.trainer.replicas
        if name:
            least, most = limits[name]
            count = max(least, min(most, len(policies)))
        found[Slots(name, tuple(policies))] = count
    return found
