"""Which groups of earlier steps a step trains again, and how they come out of the store.

The choice is a pure function of the seed, so that whoever repeats a step repeats it too.
"""

from random import Random

from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.samples import LeasedGroup

MAX_GROUPS = 256
"""Of one lease."""


def choose(
    step: int, groups: int, *, share: float, max_age: int, seed: int
) -> list[tuple[int, int]]:
    """(step, index) of about `share` times `groups` groups of the last `max_age` steps, in order.

    Each at most once; fewer where fewer steps lie behind.
    """
    places = [
        (earlier, index)
        for earlier in range(max(0, step - max_age), step)
        for index in range(groups)
    ]
    wanted = min(len(places), int(share * groups + 0.5))
    return sorted(Random(seed).sample(places, wanted))


async def lease_places(
    experience: ExperienceClient, policy: str, epoch: int, places: list[tuple[int, int]]
) -> tuple[list[LeasedGroup], float]:
    """The groups at `places`, in their order and without those that the store has lost, and how
    many seconds it took."""
    found: dict[tuple[int, int], LeasedGroup] = {}
    seconds = 0.0
    for step in sorted({step for step, _ in places}):
        wanted, cursor = {index for of, index in places if of == step}, ""
        while wanted:
            lease = await experience.lease(
                policy, epoch, step, cursor, max_groups=MAX_GROUPS, wait=0, indexes=wanted
            )
            seconds += lease.seconds
            if not lease.groups:
                break
            cursor = lease.cursor
            found |= {(step, group.id.index): group for group in lease.groups}
            wanted -= {group.id.index for group in lease.groups}
    return [found[place] for place in places if place in found], seconds
