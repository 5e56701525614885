"""Steps full of small groups, and what a policy finds of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tests.unit.experience.groups import append, sent

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.leases import Wanted
from flexmarl.experience.samples import GroupId
from flexmarl.experience.store import Store
from flexmarl.runtime.errors import FencedError


async def leased(
    store: Store,
    policy: str,
    epoch: int,
    step: int,
    *,
    indexes: Iterable[int] = (),
    wait: float = 0.0,
    lacking: int = 0,
    **what: Any,
) -> pb.LeaseResponse:
    wanted = Wanted(policy, epoch, step, indexes=frozenset(indexes), **what)
    return pb.LeaseResponse.FromString(await store.lease(wanted, wait=wait, lacking=lacking))


async def indexes(store: Store, policy: str, epoch: int, step: int, cursor: str = "") -> list[int]:
    lease = await leased(store, policy, epoch, step, cursor=cursor)
    return [group.id.index for group in lease.groups]


async def epoch_of(who: Store | ExperienceClient, policy: str = "solver") -> int:
    """A new one, taken in the incarnation of now."""
    for incarnation in itertools.count(1):
        with suppress(FencedError):
            return await who.take_epoch(policy, incarnation)
    raise AssertionError


async def fill(store: Store, step: int, count: int, **sizes: Any) -> int:
    incarnation = await store.take_incarnation()
    for index in range(count):
        assert await append(store, sent(GroupId(incarnation, step, index), **sizes))
    return incarnation
