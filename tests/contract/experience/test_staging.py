"""Data goes ahead of its entry: none of it stays behind, whatever happens in between."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from redis.exceptions import NoPermissionError
from tests.contract.experience.conftest import Server
from tests.contract.experience.filling import epoch_of, fill, indexes
from tests.contract.experience.test_access import user
from tests.unit.experience.groups import POLICIES, append, sent

from flexmarl.experience.acl import acl_rules
from flexmarl.experience.appends import STAGED_SECONDS
from flexmarl.experience.keys import Keys
from flexmarl.experience.samples import GroupId
from flexmarl.experience.store import Store
from flexmarl.runtime.errors import FencedError, FullError


def staged(client: Any, uid: str) -> list[bytes]:
    return sorted(client.scan_iter(f"{Keys(uid).prefix}staged:*", count=1000))


def data(client: Any, uid: str) -> list[bytes]:
    keys = Keys(uid)
    return [key for policy in POLICIES for key in client.scan_iter(keys.data(policy, "*"))]


async def test_what_is_stored_stays_and_nothing_else(
    server: Server, store: Store, uid: str
) -> None:
    incarnation = await fill(store, 0, 2)
    assert not await append(store, sent(GroupId(incarnation, 0, 0)))
    await store.take_incarnation()
    with pytest.raises(FencedError):
        await append(store, sent(GroupId(incarnation, 0, 2)))
    with server.client() as client:
        assert staged(client, uid) == []
        assert [client.ttl(key) for key in data(client, uid)] == [-1] * 4
        epoch = await epoch_of(store)
        await store.commit("solver", epoch, 0)
        assert len(data(client, uid)) == 2
        await store.close_step(incarnation + 1, 0)
        assert data(client, uid) == []


async def test_of_a_lost_entry_only_its_policy_takes_data_again(
    server: Server, store: Store, another: Store, uid: str
) -> None:
    incarnation = await fill(store, 0, 1)
    epoch = await epoch_of(store)
    with server.client() as client:
        [(stream_id, _)] = client.xrange(Keys(uid).stream("solver"))
        client.delete(Keys(uid).data("solver", stream_id.decode()))
        assert await indexes(another, "solver", epoch, 0) == []
        assert await append(store, sent(GroupId(incarnation, 0, 0)))
        assert (staged(client, uid), len(data(client, uid))) == ([], 2)
    assert await indexes(store, "solver", epoch, 0) == [0]


async def test_a_full_store_keeps_no_data_that_came_without_a_group(
    small_server: Server, uid: str
) -> None:
    """One policy's data may fit where the other's does not."""
    async with Store(small_server.url, uid, POLICIES) as store:
        incarnation, stored, full = await store.take_incarnation(), 0, 0
        while full < 5:
            try:
                await append(store, sent(GroupId(incarnation, 0, stored), tokens=8_000))
                stored += 1
            except FullError:
                full += 1
        with small_server.client() as client:
            assert (staged(client, uid), len(data(client, uid))) == ([], 2 * stored)


async def test_data_whose_entry_never_came_vanishes(server: Server, uid: str) -> None:
    with user(server, *acl_rules(uid), "-evalsha") as url, server.client() as client:
        async with Store(url, uid, POLICIES) as store:
            with pytest.raises(NoPermissionError):
                await append(store, sent(GroupId(1, 0, 0)))
        keys = staged(client, uid)
        assert len(keys) == len(POLICIES)
        assert all(0 < client.ttl(key) <= STAGED_SECONDS for key in keys)


async def test_a_server_that_forgot_the_script_stores_what_was_sent(
    own_server: Server, uid: str
) -> None:
    async with Store(own_server.url, uid, POLICIES) as store:
        incarnation = await fill(store, 0, 1)
        with own_server.client() as client:
            client.script_flush()
            assert await append(store, sent(GroupId(incarnation, 0, 1)))
            assert staged(client, uid) == []
        own_server.stop(signal.SIGKILL)
        own_server.start()
        with own_server.client() as client:
            assert [client.ttl(key) for key in data(client, uid)] == [-1] * 4
        epoch = await epoch_of(store)
        assert await indexes(store, "solver", epoch, 0) == [0, 1]
