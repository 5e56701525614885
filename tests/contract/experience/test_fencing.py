"""Whoever was replaced is refused, by counters and not by clocks."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.experience.filling import epoch_of, fill, indexes, leased
from tests.unit.experience.groups import append, sent

from flexmarl.experience.keys import Keys
from flexmarl.experience.samples import GroupId
from flexmarl.experience.store import Store
from flexmarl.runtime.errors import (
    FencedError,
    InvalidRequestError,
)


async def test_a_zombie_worker_is_fenced_by_incarnation(store: Store) -> None:
    older = await store.take_incarnation()
    newer = await store.take_incarnation()
    with pytest.raises(FencedError, match=f"incarnation {older} is over, {newer}"):
        await append(store, sent(GroupId(older, 0, 0)))
    with pytest.raises(FencedError):
        await store.close_step(older, 0)
    with pytest.raises(FencedError):
        await store.put_state(older, {"step": "9"})
    with pytest.raises(FencedError):
        await store.roll_back(older, 0)
    assert await store.get_state() == {}
    assert not (await store.stored(0)).closed


async def test_a_zombie_trainer_is_fenced_by_epoch(store: Store) -> None:
    await fill(store, 0, 2)
    older = await epoch_of(store)
    newer = await epoch_of(store)
    with pytest.raises(FencedError, match=f"epoch {older} is over, {newer}"):
        await leased(store, "solver", older, 0)
    with pytest.raises(FencedError):
        await store.commit("solver", older, 0)
    assert await indexes(store, "solver", newer, 0) == [0, 1]


async def test_a_zombie_orchestrator_takes_no_slot_from_the_living_one(store: Store) -> None:
    older, newer = await store.take_incarnation(), await store.take_incarnation()
    epoch = await store.take_epoch("solver", newer)
    with pytest.raises(FencedError, match=f"incarnation {older} is over, {newer}"):
        await store.take_epoch("solver", older)
    await store.check_epoch("solver", epoch)


async def test_an_epoch_can_be_checked_before_anything_is_done_with_it(store: Store) -> None:
    older, newer = [await epoch_of(store) for _ in range(2)]
    await store.check_epoch("solver", newer)
    with pytest.raises(FencedError, match=f"epoch {older} is over, {newer}"):
        await store.check_epoch("solver", older)


async def test_a_zombie_that_waits_is_told_when_it_is_replaced(store: Store) -> None:
    older = await epoch_of(store)
    waiting = asyncio.ensure_future(leased(store, "solver", older, 0, wait=60))
    await asyncio.sleep(0.1)
    await epoch_of(store)
    with pytest.raises(FencedError):
        await waiting


async def test_epochs_of_policies_are_apart(store: Store) -> None:
    assert [await epoch_of(store) for _ in range(2)] == [1, 2]
    assert await epoch_of(store, "verifier") == 1


async def test_a_server_that_lost_its_counters_learns_them_from_the_living(
    server: Server, store: Store, uid: str
) -> None:
    incarnation = [await store.take_incarnation() for _ in range(3)][-1]
    epoch = [await epoch_of(store) for _ in range(3)][-1]
    with server.client() as client:
        client.delete(*client.keys(f"{Keys(uid).prefix}*"))
    assert await append(store, sent(GroupId(incarnation, 0, 0)))
    assert await indexes(store, "solver", epoch, 0) == [0]
    with pytest.raises(FencedError):
        await append(store, sent(GroupId(incarnation - 1, 0, 1)))
    with pytest.raises(FencedError):
        await leased(store, "solver", epoch - 1, 0)


async def test_an_unknown_policy_is_refused(store: Store) -> None:
    with pytest.raises(InvalidRequestError, match="'judge' is none of"):
        await epoch_of(store, "judge")


async def test_calls_without_a_fence_are_refused(store: Store) -> None:
    with pytest.raises(InvalidRequestError, match="epoch is 0"):
        await leased(store, "solver", 0, 0)
    with pytest.raises(InvalidRequestError, match="epoch is 0"):
        await store.check_epoch("solver", 0)
    for call in (store.put_state(0, {}), store.take_epoch("solver", 0), store.roll_back(0, 1)):
        with pytest.raises(InvalidRequestError, match="incarnation is 0"):
            await call
    with pytest.raises(InvalidRequestError, match="incarnation is 0"):
        await append(store, b"")
