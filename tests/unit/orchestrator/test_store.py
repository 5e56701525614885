"""What the store is asked, and how often."""

from __future__ import annotations

from typing import Any, cast

from flexmarl.contracts.v1 import experience_pb2
from flexmarl.experience.client import StoredStep
from flexmarl.orchestrator.desk import Desk
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.store import Store


class Asked:
    """A store that is full, and counts."""

    def __init__(self) -> None:
        self.which = 0

    async def get_state(self) -> dict[str, str]:
        return {}

    async def stored(self, step: int) -> StoredStep:
        self.which += 1
        memory = experience_pb2.Memory(used=8 << 20, most=8 << 20)
        return StoredStep(frozenset({0, 1}), closed=False, notes={}, full=memory)


async def test_which_groups_are_there_is_asked_while_none_come() -> None:
    asked, came = Asked(), iter([0, 1, 2, 3, 3, 4])
    desk = Desk()
    store = Store(cast(Any, asked), Limits(full=0), desk, groups=6, stored=lambda: next(came))
    for _ in range(4):
        await store.ask(step=1)
    assert asked.which == 1  # at first nobody knows
    assert (store.away(), is_full(desk)) == ([], False)
    await store.ask(step=1)
    assert asked.which == 2
    words = "room in the store: 8 of 8 MiB are taken, 2 of 6 groups of step 1 are there"
    assert (store.away(), is_full(desk)) == ([words], True)
    await store.ask(step=1)
    assert (store.away(), is_full(desk), asked.which) == ([], False, 2)


def is_full(desk: Desk) -> bool:
    return desk.store_full is not None
