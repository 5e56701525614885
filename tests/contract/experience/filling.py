"""Steps full of small groups, and what a policy finds of them."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

from tests.unit.experience.groups import append, sent

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.samples import GroupId
from flexmarl.experience.store import Store
from flexmarl.runtime.errors import FencedError


async def leased(store: Store, policy: str, epoch: int, step: int, **how: Any) -> pb.LeaseResponse:
    return pb.LeaseResponse.FromString(await store.lease(policy, epoch, step, **how))


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
