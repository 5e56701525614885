"""Partial rollouts: which draws are to be issued, are being played, are whole, and where they went.

State only, no I/O. A draw is the n-th task of the data; steps take whichever draws are whole first,
as long as those that would become too old find a place too (`admission`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from flexmarl.data.notes import Note
from flexmarl.experience.client import StoredStep
from flexmarl.orchestrator.admission import Place, due, may_take


@dataclass(slots=True)
class Draws:
    """The draws of a job of `steps` steps with `per_step` places each, from `step` on."""

    steps: int
    per_step: int
    staleness: int
    step: int = 0
    """The first step with open places or places not yet trained."""
    next: int = 0
    """Draws from here on were never issued."""
    pending: set[int] = field(default_factory=set)
    """To be issued (again)."""
    playing: dict[int, int] = field(default_factory=dict)
    """Draw -> version that the job stood at when it was issued: none of its tokens is older."""
    whole: dict[int, int] = field(default_factory=dict)
    """Draw -> the oldest version of its tokens, in the order in which they became whole."""
    placed: dict[Place, int] = field(default_factory=dict)
    """Of steps from `step` on."""
    holes: dict[int, Place] = field(default_factory=dict)
    """Draws that must go back where they were: the store lost them, or may have them already."""

    def _free(self) -> tuple[int, list[int]]:
        """The first step with an open place; open places from there to the last step in reach."""
        reach = range(self.step, min(self.step + 2 * self.staleness + 2, self.steps))
        taken = dict.fromkeys(reach, 0)
        for step, _ in self._taken():
            taken[step] += 1
        first = next((step for step in reach if taken[step] < self.per_step), reach.stop)
        return first, [self.per_step - taken[step] for step in range(first, reach.stop)]

    def _taken(self) -> Iterator[Place]:
        return chain(self.placed, self.holes.values())

    def _due(self, version: int) -> int:
        return due(version, self.staleness, self.steps)

    def may_issue(self, draw: int, version: int) -> bool:
        """Whether it may start (again) while the job stands at `version`."""
        again = draw in self.holes or draw in self.playing  # its place is kept already
        # Up to that step there are as many places as draws, and no other is due later.
        return again or draw // self.per_step <= version + self.staleness

    def issue(self, draw: int, version: int) -> None:
        self.pending.update(range(self.next, draw))  # passed over: they may not start yet
        self.pending.discard(draw)
        self.next = max(self.next, draw + 1)
        self.playing[draw] = version

    def lost(self, place: Place) -> int:
        """The store lacks what was placed there; the draw that is played again, and goes back
        there: if it is stored after all, nothing comes twice."""
        draw = self.placed.pop(place)
        self.holes[draw] = place
        self.pending.add(draw)
        return draw

    def finish(self, draw: int, oldest: int, version: int) -> None:
        """It is whole, or given up, while the job stands at `version`; `oldest`: version of any of
        its tokens, 0 without any."""
        self.pending.discard(draw)
        self.whole[draw] = max(oldest, self.playing.pop(draw, version))

    def place(self) -> tuple[int, Place] | None:
        """Give the next whole draw its place; None: there is none that may have one now."""
        if not self.whole:
            return None
        for draw in self.whole:
            if draw in self.holes:
                return self._put(draw, self.holes.pop(draw))
        first, free = self._free()
        # Versions of draws without a place; all of one version are alike.
        versions = Counter(self.whole.values())
        versions.update(at for draw, at in self.playing.items() if draw not in self.holes)
        waiting = Counter[int]()
        for version, count in versions.items():
            waiting[self._due(version)] += count
        eldest: dict[int, int] = {}  # deadline -> draw
        for draw, version in self.whole.items():
            eldest.setdefault(self._due(version), draw)
        for deadline, draw in sorted(eldest.items()):
            if may_take(deadline, waiting - Counter([deadline]), first, free):
                used = {index for step, index in self._taken() if step == first}
                index = next(at for at in range(self.per_step) if at not in used)
                return self._put(draw, (first, index))
        return None

    def _put(self, draw: int, place: Place) -> tuple[int, Place]:
        del self.whole[draw]
        self.placed[place] = draw
        return draw, place

    def close(self, step: int) -> None:
        """That step is trained."""
        self.step = step + 1
        self.placed = {place: draw for place, draw in self.placed.items() if place[0] > step}
        for draw in [draw for draw, place in self.holes.items() if place[0] <= step]:
            del self.holes[draw]  # it was stored after all
            self.pending.discard(draw)
            self.playing.pop(draw, None)
            self.whole.pop(draw, None)

    def known(self) -> set[int]:
        """Draws that were issued, or are to be, and whose step is not trained."""
        return {*self.pending, *self.playing, *self.whole, *self.placed.values()}

    def at(self, step: int) -> dict[int, int]:
        """Index -> the draw that lies there in that step, or goes back there."""
        return {place[1]: draw for place, draw in self._places().items() if place[0] == step}

    def _places(self) -> dict[Place, int]:
        return self.placed | {place: draw for draw, place in self.holes.items()}

    def dump(self) -> str:
        """As the store and a checkpoint keep it."""
        places = self._places()
        unplaced = {*self.pending, *self.playing, *self.whole} - self.holes.keys()
        return json.dumps(
            {
                "next": self.next,
                "pending": sorted(unplaced),
                "placed": [[*place, draw] for place, draw in sorted(places.items())],
            }
        )


def lying(
    stored: Mapping[int, StoredStep], per_step: int
) -> tuple[dict[Place, int | None], dict[Place, int]]:
    """Which draw lies where, None if its note does not say so, and which some policy has lost."""
    said = {
        (step, index): drawn[0] * per_step + drawn[1]
        for step, found in stored.items()
        for index, note in found.notes.items()
        if (drawn := Note.read(note).drawn) is not None
    }
    there = {(step, index) for step, found in stored.items() for index in found.indexes}
    lost = {place: draw for place, draw in said.items() if place not in there}
    return {place: said.get(place) for place in there}, lost


def restored(
    text: str, fresh: Draws, stored: Mapping[Place, int | None], lost: Mapping[Place, int]
) -> Draws:
    """For a new incarnation, in which nothing is being played: what `dump` kept when a step was
    trained last, and what is `stored` now, which draw in which place (None: as `dump` has it).

    What some policy `lost` goes back where it was. A draw that is not stored never got there, or
    the job fell back to before it did: it is to be issued again.
    """
    known: dict[str, Any] = json.loads(text) if text else {"next": fresh.step * fresh.per_step}
    before = {
        (step, index): draw for step, index, draw in known.get("placed", ()) if step >= fresh.step
    }
    for place, lies in stored.items():
        draw = before.get(place) if lies is None else lies
        if draw is not None:
            fresh.placed[place] = draw
    fresh.holes = {draw: place for place, draw in lost.items()}
    there = set(fresh.placed.values())
    fresh.next = max([known["next"], *(draw + 1 for draw in there | fresh.holes.keys())])
    passed = range(known["next"], fresh.next)
    drawn = {*known.get("pending", ()), *before.values(), *passed, *fresh.holes}
    fresh.pending = drawn - there
    return fresh
