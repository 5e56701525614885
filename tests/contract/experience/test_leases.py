"""Whole groups of one step, in order of arrival, again for every new epoch."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.experience.filling import epoch_of, fill, indexes, leased
from tests.unit.experience.groups import POLICIES, append, request, sent

from flexmarl.experience import handout
from flexmarl.experience.entries import Name
from flexmarl.experience.keys import Keys
from flexmarl.experience.leases import MAX_LEASE_BYTES
from flexmarl.experience.samples import GroupId
from flexmarl.experience.store import Store
from flexmarl.runtime.errors import FencedError, InvalidRequestError


async def test_a_cursor_goes_on_where_the_last_lease_ended(store: Store) -> None:
    incarnation = await fill(store, 0, 5)
    epoch = await epoch_of(store)
    first = await leased(store, "solver", epoch, 0, limit=2)
    second = await leased(store, "solver", epoch, 0, cursor=first.cursor, limit=2)
    assert [group.id.index for group in (*first.groups, *second.groups)] == [0, 1, 2, 3]
    assert await indexes(store, "solver", epoch, 0, second.cursor) == [4]
    third = await leased(store, "solver", epoch, 0, cursor=second.cursor)
    nothing = await leased(store, "solver", epoch, 0, cursor=third.cursor)
    assert (list(nothing.groups), nothing.cursor) == ([], third.cursor)
    await append(store, sent(GroupId(incarnation, 0, 9)))
    assert await indexes(store, "solver", epoch, 0, third.cursor) == [9]


async def test_a_new_epoch_reads_every_uncommitted_entry_again(store: Store) -> None:
    await fill(store, 0, 4)
    first = await epoch_of(store)
    assert await indexes(store, "solver", first, 0) == [0, 1, 2, 3]
    second = await epoch_of(store)
    assert await indexes(store, "solver", second, 0) == [0, 1, 2, 3]


async def test_a_lease_hands_out_its_own_step_only(store: Store) -> None:
    incarnation = await store.take_incarnation()
    for index in range(3):
        for step in (6, 5):
            await append(store, sent(GroupId(incarnation, step, index)))
    epoch = await epoch_of(store)
    lease = await leased(store, "solver", epoch, 5, limit=2)
    assert [(group.id.step, group.id.index) for group in lease.groups] == [(5, 0), (5, 1)]
    assert await store.commit("solver", epoch, 5) == 3
    assert await indexes(store, "solver", epoch, 6) == [0, 1, 2]


async def test_a_lease_of_some_indexes_hands_out_these_alone(store: Store) -> None:
    await fill(store, 0, 6)
    epoch = await epoch_of(store)
    first = await leased(store, "solver", epoch, 0, indexes={1, 4, 5, 9}, limit=2)
    assert [group.id.index for group in first.groups] == [1, 4]
    rest = await leased(store, "solver", epoch, 0, cursor=first.cursor, indexes={1, 4, 5, 9})
    assert [group.id.index for group in rest.groups] == [5]
    nothing = await leased(store, "solver", epoch, 0, cursor=rest.cursor, indexes={1, 4, 5, 9})
    assert (list(nothing.groups), nothing.cursor) == ([], rest.cursor)


async def test_a_lease_waits_for_the_indexes_that_it_asks_for(store: Store) -> None:
    incarnation = await fill(store, 0, 2)
    epoch = await epoch_of(store)
    waiting = asyncio.ensure_future(leased(store, "solver", epoch, 0, indexes={7}, wait=60))
    for index in (5, 7):
        await append(store, sent(GroupId(incarnation, 0, index)))
    assert [group.id.index for group in (await waiting).groups] == [7]


async def test_a_waiting_lease_gets_the_group_that_arrives(store: Store) -> None:
    incarnation = await store.take_incarnation()
    waiting = [
        asyncio.ensure_future(leased(store, policy, await epoch_of(store, policy), 0, wait=60))
        for policy in POLICIES
    ]
    await asyncio.sleep(0.1)
    assert not any(each.done() for each in waiting)
    await append(store, sent(GroupId(incarnation, 0, 0)))
    for lease in await asyncio.gather(*waiting):
        assert [group.id.index for group in lease.groups] == [0]


async def test_the_last_groups_that_a_reader_lacks_wait_for_no_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handout, "GATHER_SECONDS", 60)
    incarnation, epoch = await store.take_incarnation(), await epoch_of(store)
    waiting = asyncio.ensure_future(leased(store, "solver", epoch, 0, wait=60, lacking=3))
    for index in range(3):
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await append(store, sent(GroupId(incarnation, 0, index)))
    assert [group.id.index for group in (await waiting).groups] == [0, 1, 2]


async def test_groups_at_the_heels_of_the_last_answer_are_handed_out_though_others_lack(
    store: Store,
) -> None:
    incarnation, epoch = await store.take_incarnation(), await epoch_of(store)
    seen, cursor = list[int](), ""
    for index in range(3):
        await append(store, sent(GroupId(incarnation, 0, index)))
        lease = await leased(store, "solver", epoch, 0, cursor=cursor, wait=60, lacking=9)
        seen, cursor = seen + [group.id.index for group in lease.groups], lease.cursor
    assert seen == [0, 1, 2]


async def test_the_server_is_asked_once_per_answer(server: Server, store: Store) -> None:
    incarnation, epoch = await store.take_incarnation(), await epoch_of(store)
    with server.client() as client:

        def asked() -> int:
            return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])

        waiting = asyncio.ensure_future(leased(store, "solver", epoch, 0, wait=60))
        await asyncio.sleep(0.1)
        for index in range(4):
            before = asked()
            await append(store, sent(GroupId(incarnation, 0, index)))
            lease = await waiting
            waiting = asyncio.ensure_future(
                leased(store, "solver", epoch, 0, cursor=lease.cursor, wait=60)
            )
            await asyncio.sleep(0.1)
            assert asked() - before == 2  # one of them stored the group
        waiting.cancel()


async def test_a_reader_that_was_replaced_hears_of_it_while_it_waits(store: Store) -> None:
    incarnation, epoch = await store.take_incarnation(), await epoch_of(store)
    await append(store, sent(GroupId(incarnation, 0, 0)))
    cursor = (await leased(store, "solver", epoch, 0)).cursor
    await epoch_of(store)
    with pytest.raises(FencedError):
        await leased(store, "solver", epoch, 0, cursor=cursor, wait=60)


async def test_an_append_through_another_instance_wakes_a_waiting_lease(
    server: Server, store: Store, uid: str
) -> None:
    epoch = await epoch_of(store)
    waiting = asyncio.ensure_future(leased(store, "solver", epoch, 0, wait=60))
    async with Store(server.url, uid, POLICIES) as other:
        await append(other, sent(GroupId(await other.take_incarnation(), 0, 0)))
    assert len((await waiting).groups) == 1


async def test_many_waiting_leases_hold_no_connection(server: Server, store: Store) -> None:
    """Far more waiters than the pool has connections, and appends still pass."""
    epoch = await epoch_of(store)
    waiting = [
        asyncio.ensure_future(leased(store, "solver", epoch, 0, wait=60)) for _ in range(200)
    ]
    await asyncio.sleep(0.5)
    await fill(store, 0, 1)
    leases = await asyncio.gather(*waiting)
    assert all(lease.groups[0].id.index == 0 for lease in leases)
    with server.client() as client:
        assert len(client.client_list()) < 40


async def test_a_lease_without_groups_ends_after_its_wait(store: Store) -> None:
    epoch = await epoch_of(store)
    lease = await leased(store, "solver", epoch, 0, wait=0.05)
    assert lease.waited > 0
    assert (list(lease.groups), lease.cursor) == ([], "")


async def test_waiting_leases_end_when_the_service_is_about_to_stop(store: Store) -> None:
    epoch = await epoch_of(store)
    waiting = asyncio.ensure_future(leased(store, "solver", epoch, 0, wait=600))
    await asyncio.sleep(0.05)
    store.release()
    assert not (await waiting).groups


async def test_a_large_group_comes_back_whole_and_none_of_it_lies_in_the_stream(
    server: Server, store: Store, uid: str
) -> None:
    await fill(store, 0, 1, tokens=300_000)
    lease = await leased(store, "solver", await epoch_of(store), 0)
    assert lease.groups[0].samples == request(GroupId(1, 0, 0), tokens=300_000).policies[0]
    with server.client() as client:
        [(_, fields)] = client.xrange(Keys(uid).stream("solver"))
    assert sum(map(len, fields.values())) < 1000


async def test_what_was_just_stored_is_handed_out_once_without_reading_it(
    server: Server, store: Store, uid: str
) -> None:
    """And read again whenever somebody asks again."""
    await fill(store, 0, 3)
    epoch = await epoch_of(store)
    with server.client() as client:
        for name in client.zrange(Keys(uid).entries("solver", 0), 0, -1)[:2]:
            stream_id = Name.parse(name).stream_id
            client.rename(Keys(uid).data("solver", stream_id), f"{Keys(uid).prefix}{stream_id}")
        assert await indexes(store, "solver", epoch, 0) == [0, 1, 2]
        for name in client.zrange(Keys(uid).entries("solver", 0), 0, -1)[:1]:
            stream_id = Name.parse(name).stream_id
            client.rename(f"{Keys(uid).prefix}{stream_id}", Keys(uid).data("solver", stream_id))
    assert await indexes(store, "solver", epoch, 0) == [0, 2]


async def test_one_answer_is_bounded_and_the_next_goes_on(store: Store) -> None:
    await fill(store, 0, 5, tokens=600_000)  # 11 MB each
    epoch, cursor, seen, answers = await epoch_of(store), "", list[int](), 0
    while len(seen) < 5:
        lease = await leased(store, "solver", epoch, 0, cursor=cursor)
        assert 0 < sum(group.ByteSize() for group in lease.groups) <= MAX_LEASE_BYTES
        seen += [group.id.index for group in lease.groups]
        cursor, answers = lease.cursor, answers + 1
    assert answers == 2
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("cursor", ["5", "(", "+", "1-1", "0" * 41])
async def test_a_cursor_of_someone_else_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidRequestError, match="cursor"):
        await leased(store, "solver", await epoch_of(store), 0, cursor=cursor)


async def test_kept_steps_are_leased_again_until_they_are_too_old(store: Store) -> None:
    """Replay: what is kept survives the close of its step, and a restart of its reader."""
    incarnation = await store.take_incarnation()
    for step in range(4):
        for index in range(2):
            await append(store, sent(GroupId(incarnation, step, index)))
        epoch = await epoch_of(store)
        deleted = await store.commit("solver", epoch, step, keep=2)
        assert deleted == (2 if step >= 2 else 0)
        assert await store.commit("solver", epoch, step, keep=2) == 0
        await store.commit("verifier", await epoch_of(store, "verifier"), step)
        await store.close_step(incarnation, step)
        for one in range(4):
            left = [0, 1] if step - 2 < one <= step else []
            assert await indexes(store, "solver", epoch, one) == left
            assert await indexes(store, "verifier", await epoch_of(store, "verifier"), one) == []
    assert not await append(store, sent(GroupId(incarnation, 3, 5)))
    epoch = await epoch_of(store)
    assert await store.commit("solver", epoch, 3) == 4  # the step before it, too
    assert [await indexes(store, "solver", epoch, step) for step in range(4)] == [[]] * 4


async def test_a_roll_back_forgets_kept_steps_from_there_on(store: Store) -> None:
    incarnation = await store.take_incarnation()
    epoch = await epoch_of(store)
    for step in range(3):
        await append(store, sent(GroupId(incarnation, step, 0)))
        await store.commit("solver", epoch, step, keep=8)
        await store.close_step(incarnation, step)
    await store.roll_back(incarnation, 1)
    assert [await indexes(store, "solver", epoch, step) for step in range(3)] == [[0], [], []]
    await append(store, sent(GroupId(incarnation, 1, 3)))
    assert await store.commit("solver", epoch, 1, keep=1) == 1
    assert [await indexes(store, "solver", epoch, step) for step in range(3)] == [[], [3], []]
