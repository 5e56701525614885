"""Memory is bounded: producers wait, nothing is lost, nothing is left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.experience.filling import epoch_of, indexes
from tests.unit.experience.groups import POLICIES, append, samples_of, sent

from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.keys import Keys
from flexmarl.experience.samples import GroupId
from flexmarl.experience.server import register
from flexmarl.experience.store import Store
from flexmarl.experience.wire import Part, read_group
from flexmarl.runtime.errors import (
    FencedError,
    FlexMARLError,
    FullError,
    JobFailedError,
)
from flexmarl.runtime.grpc import serving


async def test_ten_thousand_groups_leave_nothing_behind_and_none_is_lost(
    own_server: Server, uid: str
) -> None:
    """Neither in the job's keys nor in the server, but for what its connections take, what waits to
    be written to its log and what it remembers of slow commands: a leak of 5 bytes a group would
    be seen. Once or twice its tables grow, by more than all of that.
    """

    def used() -> tuple[int, int]:
        with own_server.client() as client:
            client.slowlog_reset()  # up to 128 commands with their arguments
            keys = client.keys(f"{Keys(uid).prefix}*")
            memory = client.info("memory")
            clients = sum(int(each["tot-mem"]) for each in client.client_list())
            return (
                sum(client.memory_usage(key) or 0 for key in keys),
                int(memory["used_memory"]) - int(memory["mem_aof_buffer"]) - clients,
            )

    at_once, steps, after = 500, 20, list[tuple[int, int]]()
    async with Store(own_server.url, uid, POLICIES) as store:
        incarnation = await store.take_incarnation()
        epochs = {policy: await epoch_of(store, policy) for policy in POLICIES}

        async def produce(step: int, first: int) -> None:
            for index in range(first, at_once, 20):
                assert await append(store, sent(GroupId(incarnation, step, index), episodes=1))

        for step in range(steps):
            await asyncio.gather(*(produce(step, first) for first in range(20)))
            for policy, epoch in epochs.items():
                assert sorted(await indexes(store, policy, epoch, step)) == list(range(at_once))
                assert await store.commit(policy, epoch, step) == at_once
            await store.close_step(incarnation, step)
            after.append(used())
    keys, dataset = zip(*after, strict=True)
    assert max(keys) <= keys[0] + 200
    assert median(later - before for before, later in pairwise(dataset)) < 5 * at_once


async def test_full_memory_makes_producers_wait_and_nothing_is_lost(
    small_server: Server, uid: str
) -> None:
    """Every step starts with a full store, and groups of it come through when others leave."""
    groups, tokens, filler = 8, 8_000, 99
    async with (
        asyncio.timeout(120),
        Store(small_server.url, uid, POLICIES) as store,
        serving(register(store), "127.0.0.1:0") as address,
        ExperienceClient(address, patience=0.2) as client,  # waiting outlasts it
    ):
        incarnation = await client.take_incarnation()

        async def produce(step: int, index: int) -> None:
            group = GroupId(incarnation, step, index)
            assert await client.append_group(group, "t", samples_of(group, tokens=tokens))

        async def consume(policy: str, step: int) -> list[int]:
            epoch, cursor, found = await epoch_of(client, policy), "", list[int]()
            while len(found) < groups:
                lease = await client.lease(policy, epoch, step, cursor, wait=1)
                cursor = lease.cursor
                found += [each.id.index for each in lease.groups]
            assert await client.commit(policy, epoch, step) == groups
            return found

        for step in range(3):
            filled = 0
            try:  # the service's own answer, without patience
                while True:
                    group = GroupId(incarnation, filler + step, filled)
                    await append(store, sent(group, tokens=tokens))
                    filled += 1
            except FullError:
                pass
            producing = [asyncio.ensure_future(produce(step, index)) for index in range(groups)]
            await asyncio.sleep(0.5)
            assert filled > groups
            assert not all(each.done() for each in producing)  # a buffer that shrinks lets one in
            for policy in POLICIES:  # needs no memory, as it is what frees it
                epoch = await epoch_of(client, policy)
                assert await client.commit(policy, epoch, filler + step) == filled
            found = await asyncio.gather(*(consume(policy, step) for policy in POLICIES))
            await asyncio.gather(*producing)
            assert [sorted(each) for each in found] == [list(range(groups))] * 2


async def test_while_the_store_is_full_one_group_asks_for_all_of_a_client(
    small_server: Server, uid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole groups that go there and back are in the way of those who make room."""
    groups, tokens = 12, 8_000
    async with (
        asyncio.timeout(60),
        Store(small_server.url, uid, POLICIES) as store,
        serving(register(store), "127.0.0.1:0") as address,
        ExperienceClient(address) as client,
    ):
        incarnation = await client.take_incarnation()
        await fill_up(store, incarnation, 9)
        whole, refused, asking, meanwhile = store.append, Counter[int](), 0, list[int]()
        seen = asyncio.Event()

        async def watched(
            offered: Sequence[Part], played: Sequence[float] = ()
        ) -> list[bool | FlexMARLError]:
            nonlocal asking
            asking += len(offered)
            if len(refused) == groups:
                meanwhile.append(asking)
                if len(meanwhile) == 3:
                    seen.set()
            outcomes = await whole(offered, played)
            asking -= len(offered)
            refused.update(read_group(each).id.index for each in offered)
            return outcomes

        async def produce(index: int) -> None:
            group = GroupId(incarnation, 1, index)
            assert await client.append_group(group, "t", samples_of(group, tokens=tokens))

        monkeypatch.setattr(store, "append", watched)
        producing = [asyncio.ensure_future(produce(index)) for index in range(groups)]
        await seen.wait()
        assert set(meanwhile) == {1}
        for policy in POLICIES:
            await client.commit(policy, await epoch_of(client, policy), 9)
        await asyncio.gather(*producing)
        assert (await client.stored(1)).indexes == set(range(groups))


async def fill_up(store: Store, incarnation: int, step: int) -> int:
    """How many groups went in before the store was full."""
    for index in range(10_000):
        try:
            await append(store, sent(GroupId(incarnation, step, index), tokens=8_000))
        except FullError:
            return index
    raise AssertionError("it never was full")


@pytest.mark.parametrize(("alone", "other"), [
    (True, None), (True, "older"), (True, "newer"), (False, None),
])  # fmt: skip
async def test_a_step_that_can_never_fit_ends_the_job_in_words(
    small_server: Server, uid: str, alone: bool, other: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless an older step, or somebody else in the server, may still free memory."""
    monkeypatch.setattr("flexmarl.experience.fullness.STUCK_SECONDS", 0.2)
    async with asyncio.timeout(120), Store(small_server.url, uid, POLICIES, alone=alone) as store:
        incarnation = await store.take_incarnation()
        if other:
            step = {"older": 0, "newer": 2}[other]
            await append(store, sent(GroupId(incarnation, step, 0), tokens=1))
        serving_job = asyncio.ensure_future(store.serve())
        count = await fill_up(store, incarnation, 1)
        for _ in range(5):  # as its client would
            await asyncio.sleep(0.1)
            with pytest.raises(FullError):
                await append(store, sent(GroupId(incarnation, 1, count), tokens=8_000))
        done, _ = await asyncio.wait([serving_job], timeout=0.5)
        if alone and other != "older":
            words = rf"8 MiB are full after {count} groups of step 1"
            with pytest.raises(JobFailedError, match=words):
                await serving_job
        else:
            assert not done
            serving_job.cancel()


async def test_a_full_store_knows_what_it_has_and_refuses_who_was_replaced(
    small_server: Server, uid: str
) -> None:
    """Neither needs memory: an answer that got lost must not make a whole step look unfinished."""
    async with Store(small_server.url, uid, POLICIES, alone=True) as store:
        old = await store.take_incarnation()
        count = await fill_up(store, old, 1)
        for _ in range(3):
            assert not await append(store, sent(GroupId(old, 1, 0), tokens=8_000))
        await store.close_step(old, 0)
        assert not await append(store, sent(GroupId(old, 0, 7), tokens=8_000))
        await store.take_incarnation()
        with pytest.raises(FencedError):
            await append(store, sent(GroupId(old, 1, count), tokens=8_000))


async def test_a_store_says_how_full_it_is_while_groups_wait_for_room(
    small_server: Server, uid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To whoever asks what it holds."""
    async with (
        Store(small_server.url, uid, POLICIES) as store,
        serving(register(store), "127.0.0.1:0") as address,
        ExperienceClient(address) as client,
    ):
        incarnation = await client.take_incarnation()
        assert (await client.stored(1)).full is None
        await fill_up(store, incarnation, 1)
        full = (await client.stored(2)).full
        assert full is not None
        assert full.most == 8 << 20
        assert full.used > full.most - (1 << 20)
        for policy in POLICIES:
            await client.commit(policy, await epoch_of(client, policy), 1)
        await append(store, sent(GroupId(incarnation, 2, 0), tokens=8_000))
        assert (await client.stored(2)).full is None
        await fill_up(store, incarnation, 2)
        monkeypatch.setattr("flexmarl.experience.fullness.WAITING_SECONDS", 0.0)
        assert (await client.stored(2)).full is None  # whoever waited has left
