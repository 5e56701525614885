"""Each identity once, for all policies at once."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.experience.filling import epoch_of, fill, indexes, leased
from tests.unit.experience.groups import POLICIES, append, request, sent

from flexmarl.experience.keys import Keys
from flexmarl.experience.samples import GroupId
from flexmarl.experience.store import Store
from flexmarl.runtime.errors import (
    FencedError,
    InvalidRequestError,
    StalePolicyError,
)


async def test_what_is_stored_is_leased_whole_by_every_policy(store: Store) -> None:
    incarnation = await fill(store, 0, 3)
    for number, policy in enumerate(POLICIES):
        epoch = await epoch_of(store, policy)
        lease = await leased(store, policy, epoch, 0)
        assert [group.id.index for group in lease.groups] == [0, 1, 2]
        for group in lease.groups:
            sent = request(GroupId(incarnation, 0, group.id.index))
            assert group.task_id == sent.task_id
            assert group.samples == sent.policies[number]


async def test_an_append_is_idempotent(store: Store) -> None:
    incarnation = await fill(store, 0, 1)
    assert not await append(store, sent(GroupId(incarnation, 0, 0)))
    assert await indexes(store, "solver", await epoch_of(store), 0) == [0]


async def test_what_an_older_incarnation_stored_is_not_stored_again(store: Store) -> None:
    await fill(store, 0, 2)
    newer = await store.take_incarnation()
    assert not await append(store, sent(GroupId(newer, 0, 1)))
    assert (await store.stored(0)).indexes == [0, 1]


async def test_a_refused_group_leaves_nothing_for_any_policy(store: Store) -> None:
    """The second policy's samples are broken: the first one's are not stored either."""
    incarnation = await store.take_incarnation()
    broken = request(GroupId(incarnation, 0, 0))
    broken.policies[1].rewards[1] = float("nan")
    with pytest.raises(InvalidRequestError, match="1/0/0/1/verifier/0"):
        await append(store, broken.SerializeToString())
    for policy in POLICIES:
        assert await indexes(store, policy, await epoch_of(store, policy), 0) == []
    assert (await store.stored(0)).indexes == []
    assert await append(store, sent(GroupId(incarnation, 0, 0)))


async def test_a_policy_that_took_no_turn_gets_an_empty_marker(store: Store) -> None:
    await fill(store, 0, 2, silent=frozenset({"verifier"}))
    lease = await leased(store, "verifier", await epoch_of(store, "verifier"), 0)
    assert [group.id.index for group in lease.groups] == [0, 1]
    assert all(not group.samples.sequences for group in lease.groups)
    assert {group.samples.policy for group in lease.groups} == {"verifier"}


async def test_a_stale_version_is_refused(store: Store) -> None:
    incarnation = await store.take_incarnation()
    stale = request(GroupId(incarnation, 4, 0))
    stale.policies[0].version = 3
    with pytest.raises(StalePolicyError, match="version 3 of 'solver'"):
        await append(store, stale.SerializeToString())


async def test_commit_is_idempotent_and_leaves_other_policies_alone(store: Store) -> None:
    await fill(store, 0, 3)
    epochs = {policy: await epoch_of(store, policy) for policy in POLICIES}
    assert await store.commit("solver", epochs["solver"], 0) == 3
    assert await store.commit("solver", epochs["solver"], 0) == 0
    assert await indexes(store, "solver", epochs["solver"], 0) == []
    assert await indexes(store, "verifier", epochs["verifier"], 0) == [0, 1, 2]


async def test_a_committed_group_is_not_stored_again(store: Store) -> None:
    incarnation = await fill(store, 0, 2)
    for policy in POLICIES:
        await store.commit(policy, await epoch_of(store, policy), 0)
    assert (await store.stored(0)).indexes == [0, 1]
    assert not await append(store, sent(GroupId(incarnation, 0, 1)))


async def test_an_append_to_a_closed_step_is_a_duplicate(store: Store) -> None:
    incarnation = await fill(store, 1, 2)
    await store.close_step(incarnation, 1)
    await store.close_step(incarnation, 0)  # late, and without effect
    for step in (0, 1):
        stored = await store.stored(step)
        assert (stored.indexes, stored.closed) == ([], True)
        assert not await append(store, sent(GroupId(incarnation, step, 0)))
    assert not (await store.stored(2)).closed
    assert await append(store, sent(GroupId(incarnation, 2, 0)))


async def test_a_closed_step_leaves_no_key_behind(server: Server, store: Store, uid: str) -> None:
    incarnation = await fill(store, 0, 2)
    await store.commit("solver", await epoch_of(store), 0)  # verifier's are left over
    await store.close_step(incarnation, 0)
    keys = Keys(uid)
    with server.client() as client:
        names = {name.decode() for name in client.keys(f"{keys.prefix}*")}
        assert all(client.xlen(keys.stream(policy)) == 0 for policy in POLICIES)
    assert names == {
        keys.incarnation, keys.closed, keys.epoch("solver"), *map(keys.stream, POLICIES)
    }  # fmt: skip


async def test_a_roll_back_forgets_the_step_and_all_after_it(store: Store) -> None:
    first = await store.take_incarnation()
    for step in range(4):
        await append(store, sent(GroupId(first, step, 0)))
    await store.close_step(first, 2)
    second = await store.take_incarnation()
    await store.roll_back(second, 1)
    assert (await store.stored(0)).closed
    for step in (1, 2, 3):
        stored = await store.stored(step)
        assert (stored.indexes, stored.closed) == ([], False)
        assert await append(store, sent(GroupId(second, step, 0)))
    epoch = await epoch_of(store)
    for step in (1, 2, 3):
        lease = await leased(store, "solver", epoch, step)
        assert [group.id.incarnation for group in lease.groups] == [second]
    with pytest.raises(FencedError):
        await append(store, sent(GroupId(first, 1, 5)))
    await store.roll_back(await store.take_incarnation(), 0)
    assert not (await store.stored(0)).closed


async def test_state_is_one_hash_whose_other_fields_stay(store: Store) -> None:
    incarnation = await store.take_incarnation()
    await store.put_state(incarnation, {"step": "3", "versions": '{"solver": 3}'})
    await store.put_state(incarnation, {"step": "4"})
    await store.put_state(incarnation, {})
    assert await store.get_state() == {"step": "4", "versions": '{"solver": 3}'}


async def test_concurrent_producers_with_duplicates_store_each_identity_once(
    store: Store,
) -> None:
    incarnation = await store.take_incarnation()

    async def produce(worker: int) -> int:
        order = [(worker * 7 + offset) % 20 for offset in range(20)]
        return sum([await append(store, sent(GroupId(incarnation, 0, at))) for at in order])

    accepted = await asyncio.gather(*(produce(worker) for worker in range(32)))
    assert sum(accepted) == 20
    for policy in POLICIES:
        found = await indexes(store, policy, await epoch_of(store, policy), 0)
        assert sorted(found) == list(range(20))


async def test_jobs_of_one_server_do_not_meet(server: Server, store: Store) -> None:
    await fill(store, 0, 1)
    async with Store(server.url, "default/job/other", POLICIES) as other:
        assert (await other.stored(0)).indexes == []
        assert await other.take_incarnation() == 1


async def test_notes_are_told_with_their_groups_until_the_step_is_closed(
    store: Store, server: Server, uid: str
) -> None:
    incarnation = await store.take_incarnation()
    for index, note in ((0, b"first"), (1, b""), (2, b"third")):
        assert await append(store, sent(GroupId(incarnation, 0, index), note=note))
    assert not await append(store, sent(GroupId(incarnation, 0, 0), note=b"again"))
    assert (await store.stored(0)).notes == {0: b"first", 2: b"third"}
    assert (await store.stored(1)).notes == {}
    await store.close_step(incarnation, 0)
    assert (await store.stored(0)).notes == {}
    with server.client() as client:
        assert not client.exists(Keys(uid).notes(0))


async def test_a_roll_back_forgets_notes(store: Store) -> None:
    incarnation = await store.take_incarnation()
    for step in range(2):
        await append(store, sent(GroupId(incarnation, step, 0), note=b"n"))
    await store.roll_back(incarnation, 1)
    assert [(await store.stored(step)).notes for step in range(2)] == [{0: b"n"}, {}]
