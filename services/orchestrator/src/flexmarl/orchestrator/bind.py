"""Which policy a training slot takes next; pure.

Fewer slots than policies is the normal case. A policy's state lies in the shared memory of the slot
that trained it, so a policy keeps its slot: `homes` spreads them once, `next_policy` orders them.
"""

from collections.abc import Collection, Mapping, Sequence, Set


def homes(policies: Sequence[str], slots: Sequence[Collection[str] | None]) -> list[list[str]]:
    """The policies of each slot, as even as it goes; `slots` says which each may train (None: any),
    and there must be one for every policy."""
    found: list[list[str]] = [[] for _ in slots]
    for policy in policies:
        allowed = [n for n, may in enumerate(slots) if may is None or policy in may]
        found[min(allowed, key=lambda number: len(found[number]))].append(policy)
    return found


def next_policy(
    candidates: Sequence[str], bound: str | None, waiting: Mapping[str, int], done: Set[str]
) -> str | None:
    """The policy that a free slot trains next in this step; None when all of its own are done.

    Most waiting work (tokens, any unit) first. The bound policy wins unless another has more, and
    equals go in the order of `candidates`.
    """
    left = [policy for policy in candidates if policy not in done]
    if not left:
        return None
    most = max(waiting.get(policy, 0) for policy in left)
    best = [policy for policy in left if waiting.get(policy, 0) == most]
    return bound if bound in best else best[0]
