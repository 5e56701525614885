"""How many pods each workload has; pure. The controller alone writes replicas."""

from collections.abc import Mapping
from dataclasses import dataclass

from flexmarl.contracts.job import MARLJobSpec


@dataclass(frozen=True, slots=True, order=True)
class Engines:
    """Those of one pool, or of one policy that has its own."""

    pool: str = ""
    policy: str = ""


def engines(spec: MARLJobSpec, wanted: Mapping[str, int]) -> dict[Engines, int]:
    """Engine pods; each pool has its min to max.

    `wanted`: by pool, what the orchestrator asks for, or how many there are while it says nothing.
    """
    pools = spec.engine_pools
    shared = {policy for policies in pools.values() for policy in policies}
    found = {
        Engines(policy=policy): spec.roles.engine.replicas
        for policy in spec.local_policies
        if policy not in shared
    }
    for pool in spec.pools:
        if pool.name in pools:
            found[Engines(pool=pool.name)] = max(
                pool.min, min(pool.max, wanted.get(pool.name, pool.min))
            )
    return found
