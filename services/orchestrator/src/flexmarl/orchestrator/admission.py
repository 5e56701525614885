"""Which groups may be played now, and where one that is whole belongs: bounded staleness, pure.

Step j trains version j; its tokens may come from versions j - s to j. What is in flight or queued
counts like what is trained: a group is admitted only if it will find a place in time, and a place
is given away only if those that are due still find theirs. So the bound is kept by waiting; nothing
that was sampled is ever thrown away for its age.

A *place* is a (step, index). Without partial rollouts a group knows its place when it is issued.
With them it is a *draw*, the n-th task of the data, and gets its place when it is whole.
"""

from collections.abc import Iterable, Mapping, Sequence

Place = tuple[int, int]


def open_steps(version: int, steps: int, staleness: int) -> range:
    """The steps of which groups may be in flight while the job stands at `version`."""
    return range(version, min(version + staleness + 1, steps))


def admits(step: int, versions: Iterable[int | None], staleness: int) -> bool:
    """Whether a group of `step` may start, if its policies hold `versions` (None: not yet any)."""
    return all(version is not None and version >= step - staleness for version in versions)


def due(version: int, staleness: int, steps: int) -> int:
    """The last step in which a token of `version` may be trained; the job has `steps` steps."""
    return min(version + staleness, steps - 1)


def fits(due: Mapping[int, int], first: int, free: Sequence[int]) -> bool:
    """Whether so many groups that are due in these steps all find a place in time.

    Step `first` + i has `free[i]` places left; later steps than `free` knows have none. Placing
    the most urgent ones first works whenever anything does.
    """
    room, known, number = 0, 0, 0
    for deadline in sorted(due):
        while known < len(free) and first + known <= deadline:
            room += free[known]
            known += 1
        number += due[deadline]
        if number > room:
            return False
    return True


def may_take(deadline: int, others: Mapping[int, int], first: int, free: Sequence[int]) -> bool:
    """Whether a whole group may take a place in step `first`, beside `others` still without one:
    how many are due in which steps."""
    if not free or not free[0] or deadline < first:
        return False
    return fits(others, first, [free[0] - 1, *free[1:]])
