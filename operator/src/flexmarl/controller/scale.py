"""How many pods each workload has; pure. The controller alone writes replicas."""

from collections.abc import Mapping
from dataclasses import dataclass

from flexmarl.contracts.cluster import PoolRole, PoolSpec
from flexmarl.contracts.job import MARLJobSpec


@dataclass(frozen=True, slots=True, order=True)
class Engines:
    """The engines of one policy in one pool (`""`: in none)."""

    policy: str
    pool: str


@dataclass(frozen=True, slots=True, order=True)
class Slots:
    """The training slots of one pool (`""`: of none)."""

    pool: str
    policies: tuple[str, ...]


def pool_of(spec: MARLJobSpec, policy: str, role: PoolRole) -> PoolSpec | None:
    """Which pool of that role the policy uses."""
    named = spec.policy(policy).pools
    return next((pool for pool in spec.pools if pool.name in named and pool.role is role), None)


def engines(spec: MARLJobSpec, wanted: Mapping[str, int]) -> dict[Engines, int]:
    """Engine pods per policy; `wanted`: what the orchestrator asks for, by policy.

    In a pool each policy has at least one, all together at least the pool's min and at most its
    max. What is wanted beyond that is cut where it is largest; what is lacking goes round.
    """
    found: dict[Engines, int] = {}
    shared: dict[str, list[str]] = {}
    for policy in spec.local_policies:
        pool = pool_of(spec, policy, PoolRole.ENGINE)
        if pool is None:
            found[Engines(policy, "")] = spec.roles.engine.replicas
        else:
            shared.setdefault(pool.name, []).append(policy)
    for pool in spec.pools:
        policies = shared.get(pool.name, [])
        counts = [max(1, wanted.get(policy, 1)) for policy in policies]
        while policies and sum(counts) > pool.max and max(counts) > 1:
            counts[counts.index(max(counts))] -= 1
        while policies and sum(counts) < pool.min:
            counts[counts.index(min(counts))] += 1
        found |= {
            Engines(policy, pool.name): count
            for policy, count in zip(policies, counts, strict=True)
        }
    return found


def slots(spec: MARLJobSpec) -> dict[Slots, int]:
    """Training slots, which stay as many from a job's start to its end."""
    found: dict[Slots, int] = {}
    users: dict[str, list[str]] = {}
    for policy in spec.trained_policies:
        pool = pool_of(spec, policy, PoolRole.TRAINER)
        users.setdefault(pool.name if pool else "", []).append(policy)
    for name, policies in users.items():
        pool = next((pool for pool in spec.pools if pool.name == name), None)
        count = (
            spec.roles.trainer.replicas
            if pool is None
            else max(pool.min, min(pool.max, len(policies)))
        )
        found[Slots(name, tuple(policies))] = count
    return found
