"""Whole groups whose place in a step is not decided yet: kept until it is. No I/O.

A place is given once: a group that was stored, or may have been, in one place goes to no other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from flexmarl.experience.samples import GroupId, PolicySamples
from flexmarl.runtime.errors import FencedError, FullError, InvalidRequestError, NotFoundError

MOST_GROUPS = 1024
MOST_BYTES = 512 << 20
"""Of groups that are held; those still being played when it is reached may go beyond it."""
PLACES_KEPT = 4096


@dataclass(slots=True)
class HeldGroup:
    task_id: str
    samples: tuple[PolicySamples, ...]
    note: bytes
    oldest: int
    """No token is of an older version."""
    size: int
    place: GroupId | None = None
    """Set once it is being stored there."""

    def at(self, played: GroupId, place: GroupId) -> list[PolicySamples]:
        """What is stored at `place`: sequences go by its name."""
        return [
            PolicySamples(
                each.policy,
                each.version if each.sequences else place.step,
                tuple(
                    replace(sequence, id=f"{place}{sequence.id.removeprefix(str(played))}")
                    for sequence in each.sequences
                ),
            )
            for each in self.samples
        ]


class HeldGroups:
    """Those of the newest incarnation that was seen."""

    def __init__(self, most_groups: int = MOST_GROUPS, most_bytes: int = MOST_BYTES) -> None:
        self._most_groups, self._most_bytes = most_groups, most_bytes
        self._incarnation = 0
        self._groups: dict[GroupId, HeldGroup] = {}
        self._placed: OrderedDict[GroupId, GroupId] = OrderedDict()
        self._coming = 0
        self._bytes = 0
        self._oldest = 0

    def __len__(self) -> int:
        return len(self._groups)

    def meet(self, incarnation: int) -> None:
        """Forget what older incarnations played."""
        if incarnation > self._incarnation:
            self._incarnation = incarnation
            self._groups.clear()
            self._placed.clear()
            self._bytes = self._oldest = 0  # the job may have fallen back

    def forget_before(self, version: int) -> None:
        """Forget groups with older tokens than `version`, the oldest that any open step takes.

        Nobody asks for them any more: the answer got lost, and they were played again elsewhere.
        """
        if version > self._oldest:
            self._oldest = version
            for group in [group for group, held in self._groups.items() if held.oldest < version]:
                self._drop(group)

    @contextmanager
    def room(self, group: GroupId) -> Iterator[None]:
        """While `group` is played. FullError: too many wait for their place; FencedError."""
        self.check(group)
        waiting = len(self._groups) + self._coming
        if waiting >= self._most_groups or self._bytes >= self._most_bytes:
            raise FullError(
                f"{waiting} groups of {self._bytes >> 20} MiB wait here for their place in a step"
            )
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1

    def keep(
        self,
        group: GroupId,
        task_id: str,
        samples: tuple[PolicySamples, ...],
        note: bytes = b"",
        *,
        since: int = 0,
    ) -> None:
        """`since`: the version from which on it was played. Played again, it takes the place of the
        earlier one. FencedError.
        """
        self.check(group)
        self._drop(group)
        self._placed.pop(group, None)
        size = sum(
            sequence.token_ids.nbytes + sequence.loss_mask.nbytes + sequence.logprobs.nbytes
            for each in samples
            for sequence in each.sequences
        )
        oldest = min((each.version for each in samples if each.sequences), default=since)
        self._groups[group] = HeldGroup(task_id, samples, note, oldest, size)
        self._bytes += size

    def claim(self, played: GroupId, place: GroupId) -> HeldGroup | None:
        """The group, to be stored at `place` and nowhere else; None: it is there.

        NotFoundError: it is not here. InvalidRequestError: it has another place. FencedError.
        """
        self.check(played)
        if played.incarnation != place.incarnation:
            raise InvalidRequestError(f"group {played} has no place at {place}")
        held = self._groups.get(played)
        taken = held.place if held is not None else self._placed.get(played)
        if taken is not None and taken != place:
            raise InvalidRequestError(f"group {played} was placed at {taken}, not at {place}")
        if held is None:
            if taken is None:
                raise NotFoundError(f"group {played} is not held here")
            return None
        held.place = place
        return held

    def release(self, played: GroupId) -> None:
        """It was refused where it was to be stored: another place may do."""
        if (held := self._groups.get(played)) is not None:
            held.place = None

    def placed(self, played: GroupId, place: GroupId) -> None:
        """It is stored; its place is remembered, for those who ask again."""
        if played.incarnation == self._incarnation:
            self._drop(played)
            self._placed[played] = place
            if len(self._placed) > PLACES_KEPT:
                self._placed.popitem(last=False)

    def _drop(self, group: GroupId) -> None:
        if (held := self._groups.pop(group, None)) is not None:
            self._bytes -= held.size

    def check(self, group: GroupId) -> None:
        """FencedError: of an older incarnation than one that was met; else it is met."""
        if group.incarnation < self._incarnation:
            raise FencedError(f"incarnation {group.incarnation} is over: {self._incarnation} is on")
        self.meet(group.incarnation)
