"""Which worker plays a group; pure."""

from collections.abc import Mapping, Set


def choose_worker(outstanding: Mapping[str, int], resting: Set[str]) -> str:
    """The worker with the least outstanding groups, the first among equals.

    Workers in `resting` failed a moment ago and are taken only when there is no other.
    """
    awake = {worker: count for worker, count in outstanding.items() if worker not in resting}
    pool = awake or outstanding
    return min(pool, key=lambda worker: pool[worker])
