"""The invariants of the store, each against a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import REGISTRY
from tests.contract.experience.conftest import Server
from tests.unit.experience.groups import POLICIES, request

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.keys import Keys
from flexmarl.experience.leases import MAX_LEASE_BYTES
from flexmarl.experience.samples import GroupId
from flexmarl.experience.store import Store
from flexmarl.runtime.errors import FencedError, InvalidRequestError, StalePolicyError


async def indexes(store: Store, policy: str, epoch: int, step: int, cursor: str = "") -> list[int]:
    lease = await store.lease(policy, epoch, step, cursor=cursor)
    return [group.id.index for group in lease.groups]


async def fill(store: Store, step: int, count: int, **sizes: Any) -> int:
    incarnation = await store.take_incarnation()
    for index in range(count):
        assert await store.append(request(GroupId(incarnation, step, index), **sizes))
    return incarnation


async def test_what_is_stored_is_leased_whole_by_every_policy(store: Store) -> None:
    incarnation = await fill(store, 0, 3)
    for number, policy in enumerate(POLICIES):
        epoch = await store.take_epoch(policy)
        lease = await store.lease(policy, epoch, 0)
        assert [group.id.index for group in lease.groups] == [0, 1, 2]
        for group in lease.groups:
            sent = request(GroupId(incarnation, 0, group.id.index))
            assert group.task_id == sent.task_id
            assert group.samples == sent.policies[number]


async def test_an_append_is_idempotent(store: Store) -> None:
    incarnation = await fill(store, 0, 1)
    assert not await store.append(request(GroupId(incarnation, 0, 0)))
    assert await indexes(store, "solver", await store.take_epoch("solver"), 0) == [0]


async def test_what_an_older_incarnation_stored_is_not_stored_again(store: Store) -> None:
    await fill(store, 0, 2)
    newer = await store.take_incarnation()
    assert not await store.append(request(GroupId(newer, 0, 1)))
    assert (await store.stored(0)).indexes == [0, 1]


async def test_a_refused_group_leaves_nothing_for_any_policy(store: Store) -> None:
    """The second policy's samples are broken: the first one's are not stored either."""
    incarnation = await store.take_incarnation()
    broken = request(GroupId(incarnation, 0, 0))
    broken.policies[1].sequences[1].logprobs = b""
    with pytest.raises(InvalidRequestError, match="1/0/0/1/verifier/0"):
        await store.append(broken)
    for policy in POLICIES:
        assert await indexes(store, policy, await store.take_epoch(policy), 0) == []
    assert (await store.stored(0)).indexes == []
    assert await store.append(request(GroupId(incarnation, 0, 0)))


async def test_a_policy_that_took_no_turn_gets_an_empty_marker(store: Store) -> None:
    await fill(store, 0, 2, silent=frozenset({"verifier"}))
    lease = await store.lease("verifier", await store.take_epoch("verifier"), 0)
    assert [group.id.index for group in lease.groups] == [0, 1]
    assert all(not group.samples.sequences for group in lease.groups)
    assert {group.samples.policy for group in lease.groups} == {"verifier"}


async def test_a_stale_version_is_refused(store: Store) -> None:
    incarnation = await store.take_incarnation()
    stale = request(GroupId(incarnation, 4, 0))
    stale.policies[0].version = 3
    with pytest.raises(StalePolicyError, match="version 3 of 'solver'"):
        await store.append(stale)


async def test_a_zombie_worker_is_fenced_by_incarnation(store: Store) -> None:
    older = await store.take_incarnation()
    newer = await store.take_incarnation()
    with pytest.raises(FencedError, match=f"incarnation {older} is over, {newer}"):
        await store.append(request(GroupId(older, 0, 0)))
    with pytest.raises(FencedError):
        await store.close_step(older, 0)
    with pytest.raises(FencedError):
        await store.put_state(older, {"step": "9"})
    assert await store.get_state() == {}
    assert not (await store.stored(0)).closed


async def test_a_zombie_trainer_is_fenced_by_epoch(store: Store) -> None:
    await fill(store, 0, 2)
    older = await store.take_epoch("solver")
    newer = await store.take_epoch("solver")
    with pytest.raises(FencedError, match=f"epoch {older} is over, {newer}"):
        await store.lease("solver", older, 0)
    with pytest.raises(FencedError):
        await store.commit("solver", older, 0)
    assert await indexes(store, "solver", newer, 0) == [0, 1]


async def test_a_zombie_that_waits_is_told_when_it_is_replaced(store: Store) -> None:
    older = await store.take_epoch("solver")
    waiting = asyncio.ensure_future(store.lease("solver", older, 0, wait=60))
    await asyncio.sleep(0.1)
    await store.take_epoch("solver")
    with pytest.raises(FencedError):
        await waiting


async def test_epochs_of_policies_are_apart(store: Store) -> None:
    assert [await store.take_epoch("solver") for _ in range(2)] == [1, 2]
    assert await store.take_epoch("verifier") == 1


async def test_a_server_that_lost_its_counters_learns_them_from_the_living(
    server: Server, store: Store, uid: str
) -> None:
    incarnation = [await store.take_incarnation() for _ in range(3)][-1]
    epoch = [await store.take_epoch("solver") for _ in range(3)][-1]
    with server.client() as client:
        client.delete(*client.keys(f"{Keys(uid).prefix}*"))
    assert await store.append(request(GroupId(incarnation, 0, 0)))
    assert await indexes(store, "solver", epoch, 0) == [0]
    with pytest.raises(FencedError):
        await store.append(request(GroupId(incarnation - 1, 0, 1)))
    with pytest.raises(FencedError):
        await store.lease("solver", epoch - 1, 0)


async def test_a_cursor_goes_on_where_the_last_lease_ended(store: Store) -> None:
    incarnation = await fill(store, 0, 5)
    epoch = await store.take_epoch("solver")
    first = await store.lease("solver", epoch, 0, max_groups=2)
    second = await store.lease("solver", epoch, 0, cursor=first.cursor, max_groups=2)
    assert [group.id.index for group in (*first.groups, *second.groups)] == [0, 1, 2, 3]
    assert await indexes(store, "solver", epoch, 0, second.cursor) == [4]
    third = await store.lease("solver", epoch, 0, cursor=second.cursor)
    assert (await store.lease("solver", epoch, 0, cursor=third.cursor)) == type(third)(
        [], third.cursor
    )
    await store.append(request(GroupId(incarnation, 0, 9)))
    assert await indexes(store, "solver", epoch, 0, third.cursor) == [9]


async def test_a_new_epoch_reads_every_uncommitted_entry_again(store: Store) -> None:
    await fill(store, 0, 4)
    first = await store.take_epoch("solver")
    assert await indexes(store, "solver", first, 0) == [0, 1, 2, 3]
    second = await store.take_epoch("solver")
    assert await indexes(store, "solver", second, 0) == [0, 1, 2, 3]


async def test_a_lease_hands_out_its_own_step_only(store: Store) -> None:
    incarnation = await store.take_incarnation()
    for index in range(3):
        for step in (6, 5):
            await store.append(request(GroupId(incarnation, step, index)))
    epoch = await store.take_epoch("solver")
    lease = await store.lease("solver", epoch, 5, max_groups=2)
    assert [(group.id.step, group.id.index) for group in lease.groups] == [(5, 0), (5, 1)]
    assert await store.commit("solver", epoch, 5) == 3
    assert await indexes(store, "solver", epoch, 6) == [0, 1, 2]


async def test_a_waiting_lease_gets_the_group_that_arrives(store: Store) -> None:
    incarnation = await store.take_incarnation()
    waiting = [
        asyncio.ensure_future(store.lease(policy, await store.take_epoch(policy), 0, wait=60))
        for policy in POLICIES
    ]
    await asyncio.sleep(0.1)
    assert not any(each.done() for each in waiting)
    await store.append(request(GroupId(incarnation, 0, 0)))
    for lease in await asyncio.gather(*waiting):
        assert [group.id.index for group in lease.groups] == [0]


async def test_an_append_through_another_instance_wakes_a_waiting_lease(
    server: Server, store: Store, uid: str
) -> None:
    epoch = await store.take_epoch("solver")
    waiting = asyncio.ensure_future(store.lease("solver", epoch, 0, wait=60))
    async with Store(server.url, uid, POLICIES) as other:
        await other.append(request(GroupId(await other.take_incarnation(), 0, 0)))
    assert len((await waiting).groups) == 1


async def test_many_waiting_leases_hold_no_connection(server: Server, store: Store) -> None:
    """Far more waiters than the pool has connections, and appends still pass."""
    epoch = await store.take_epoch("solver")
    waiting = [asyncio.ensure_future(store.lease("solver", epoch, 0, wait=60)) for _ in range(200)]
    await asyncio.sleep(0.5)
    await fill(store, 0, 1)
    leases = await asyncio.gather(*waiting)
    assert all(lease.groups[0].id.index == 0 for lease in leases)
    with server.client() as client:
        assert len(client.client_list()) < 40


async def test_a_lease_without_groups_ends_after_its_wait(store: Store) -> None:
    epoch = await store.take_epoch("solver")
    lease = await store.lease("solver", epoch, 0, wait=0.05)
    assert (lease.groups, lease.cursor) == ([], "")


async def test_waiting_leases_end_when_the_service_is_about_to_stop(store: Store) -> None:
    epoch = await store.take_epoch("solver")
    waiting = asyncio.ensure_future(store.lease("solver", epoch, 0, wait=600))
    await asyncio.sleep(0.05)
    store.release()
    assert (await waiting).groups == []


async def test_payloads_beyond_a_chunk_come_back_whole(
    server: Server, store: Store, uid: str
) -> None:
    await fill(store, 0, 1, tokens=300_000)
    lease = await store.lease("solver", await store.take_epoch("solver"), 0)
    assert lease.groups[0].samples == request(GroupId(1, 0, 0), tokens=300_000).policies[0]
    with server.client() as client:
        [(_, fields)] = client.xrange(Keys(uid).stream("solver"))
    assert len(fields) > 4
    assert max(map(len, fields.values())) == 1 << 20


async def test_one_answer_is_bounded_and_the_next_goes_on(store: Store) -> None:
    await fill(store, 0, 5, tokens=600_000)  # 11 MB each
    epoch, cursor, seen, answers = await store.take_epoch("solver"), "", list[int](), 0
    while len(seen) < 5:
        lease = await store.lease("solver", epoch, 0, cursor=cursor)
        assert 0 < sum(group.ByteSize() for group in lease.groups) <= MAX_LEASE_BYTES
        seen += [group.id.index for group in lease.groups]
        cursor, answers = lease.cursor, answers + 1
    assert answers == 2
    assert seen == [0, 1, 2, 3, 4]


async def test_commit_is_idempotent_and_leaves_other_policies_alone(store: Store) -> None:
    await fill(store, 0, 3)
    epochs = {policy: await store.take_epoch(policy) for policy in POLICIES}
    assert await store.commit("solver", epochs["solver"], 0) == 3
    assert await store.commit("solver", epochs["solver"], 0) == 0
    assert await indexes(store, "solver", epochs["solver"], 0) == []
    assert await indexes(store, "verifier", epochs["verifier"], 0) == [0, 1, 2]


async def test_a_committed_group_is_not_stored_again(store: Store) -> None:
    incarnation = await fill(store, 0, 2)
    for policy in POLICIES:
        await store.commit(policy, await store.take_epoch(policy), 0)
    assert (await store.stored(0)).indexes == [0, 1]
    assert not await store.append(request(GroupId(incarnation, 0, 1)))


async def test_an_append_to_a_closed_step_is_a_duplicate(store: Store) -> None:
    incarnation = await fill(store, 1, 2)
    await store.close_step(incarnation, 1)
    await store.close_step(incarnation, 0)  # late, and without effect
    for step in (0, 1):
        stored = await store.stored(step)
        assert (stored.indexes, stored.closed) == ([], True)
        assert not await store.append(request(GroupId(incarnation, step, 0)))
    assert not (await store.stored(2)).closed
    assert await store.append(request(GroupId(incarnation, 2, 0)))


async def test_a_closed_step_leaves_no_key_behind(server: Server, store: Store, uid: str) -> None:
    incarnation = await fill(store, 0, 2)
    await store.commit("solver", await store.take_epoch("solver"), 0)  # verifier's are left over
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
        await store.append(request(GroupId(first, step, 0)))
    await store.close_step(first, 2)
    second = await store.take_incarnation(roll_back_to=1)
    assert second == first + 1
    assert (await store.stored(0)).closed
    for step in (1, 2, 3):
        stored = await store.stored(step)
        assert (stored.indexes, stored.closed) == ([], False)
        assert await store.append(request(GroupId(second, step, 0)))
    epoch = await store.take_epoch("solver")
    for step in (1, 2, 3):
        lease = await store.lease("solver", epoch, step)
        assert [group.id.incarnation for group in lease.groups] == [second]
    with pytest.raises(FencedError):
        await store.append(request(GroupId(first, 1, 5)))
    await store.take_incarnation(roll_back_to=0)
    assert not (await store.stored(0)).closed


async def test_state_is_one_hash_whose_other_fields_stay(store: Store) -> None:
    incarnation = await store.take_incarnation()
    await store.put_state(incarnation, {"step": "3", "versions": '{"solver": 3}'})
    await store.put_state(incarnation, {"step": "4"})
    await store.put_state(incarnation, {})
    assert await store.get_state() == {"step": "4", "versions": '{"solver": 3}'}


def dead_letters(reason: str) -> float:
    name = "flexmarl_experience_dead_letters_total"
    return REGISTRY.get_sample_value(name, {"reason": reason}) or 0.0


@pytest.mark.parametrize("damage", ["undecodable", "lost"])
async def test_a_damaged_entry_is_buried_and_played_again_for_its_policy_alone(
    server: Server, store: Store, uid: str, damage: str
) -> None:
    incarnation = await fill(store, 0, 3)
    keys, before = Keys(uid), dead_letters(damage)
    with server.client() as client:
        entries = client.xrange(keys.stream("solver"))
        client.xdel(keys.stream("solver"), entries[1][0])
        if damage == "undecodable":
            old = client.zrange(keys.entries("solver", 0), 1, 1)[0]
            new = client.xadd(keys.stream("solver"), {**entries[1][1], b"data:0": b"\xff garbage"})
            left, right = (part.rjust(20, b"0") for part in new.split(b"-"))
            client.zrem(keys.entries("solver", 0), old)
            client.zadd(keys.entries("solver", 0), {left + b"-" + right + b":10:1": 0})
    epoch = await store.take_epoch("solver")
    assert await indexes(store, "solver", epoch, 0) == [0, 2]
    assert dead_letters(damage) == before + 1
    assert (await store.stored(0)).indexes == [0, 2]
    with server.client() as client:
        [(_, letter)] = client.xrange(keys.dead("solver"))
        assert (letter[b"dead:step"], letter[b"dead:index"]) == (b"0", b"1")

    assert await store.append(request(GroupId(incarnation, 0, 1)))
    assert not await store.append(request(GroupId(incarnation, 0, 1)))
    assert (await store.stored(0)).indexes == [0, 1, 2]
    assert sorted(await indexes(store, "solver", epoch, 0)) == [0, 1, 2]
    verifier = await store.take_epoch("verifier")
    assert await indexes(store, "verifier", verifier, 0) == [0, 1, 2]


async def test_thousands_of_groups_leave_nothing_behind_and_none_is_lost(
    server: Server, store: Store, uid: str
) -> None:
    incarnation, at_once, steps = await store.take_incarnation(), 300, 10
    epochs = {policy: await store.take_epoch(policy) for policy in POLICIES}

    async def produce(step: int, first: int) -> None:
        for index in range(first, at_once, 20):
            assert await store.append(request(GroupId(incarnation, step, index), episodes=1))

    def used() -> int:
        with server.client() as client:
            return sum(client.memory_usage(key) or 0 for key in client.keys(f"{Keys(uid).prefix}*"))

    after = []
    for step in range(steps):
        await asyncio.gather(*(produce(step, first) for first in range(20)))
        for policy, epoch in epochs.items():
            assert sorted(await indexes(store, policy, epoch, step)) == list(range(at_once))
            assert await store.commit(policy, epoch, step) == at_once
        await store.close_step(incarnation, step)
        after.append(used())
    assert max(after) <= after[0] + 200


async def test_concurrent_producers_with_duplicates_store_each_identity_once(
    store: Store,
) -> None:
    incarnation = await store.take_incarnation()

    async def produce(worker: int) -> int:
        order = [(worker * 7 + offset) % 20 for offset in range(20)]
        return sum([await store.append(request(GroupId(incarnation, 0, at))) for at in order])

    accepted = await asyncio.gather(*(produce(worker) for worker in range(32)))
    assert sum(accepted) == 20
    for policy in POLICIES:
        found = await indexes(store, policy, await store.take_epoch(policy), 0)
        assert sorted(found) == list(range(20))


@pytest.mark.parametrize("cursor", ["5", "(", "+", "1-1", "0" * 41])
async def test_a_cursor_of_someone_else_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidRequestError, match="cursor"):
        await store.lease("solver", await store.take_epoch("solver"), 0, cursor=cursor)


async def test_an_unknown_policy_is_refused(store: Store) -> None:
    with pytest.raises(InvalidRequestError, match="'judge' is none of"):
        await store.take_epoch("judge")


async def test_calls_without_a_fence_are_refused(store: Store) -> None:
    with pytest.raises(InvalidRequestError, match="epoch is 0"):
        await store.lease("solver", 0, 0)
    with pytest.raises(InvalidRequestError, match="incarnation is 0"):
        await store.put_state(0, {})
    with pytest.raises(InvalidRequestError, match="incarnation is 0"):
        await store.append(pb.AppendGroupRequest())


async def test_jobs_of_one_server_do_not_meet(server: Server, store: Store) -> None:
    await fill(store, 0, 1)
    async with Store(server.url, "default/job/other", POLICIES) as other:
        assert (await other.stored(0)).indexes == []
        assert await other.take_incarnation() == 1
