"""Entries that cannot be read, and a server that forgot its last moments."""

from __future__ import annotations

import asyncio
import signal
import struct

import numpy as np
import pytest
from prometheus_client import REGISTRY
from tests.contract.experience.conftest import Server
from tests.contract.experience.filling import epoch_of, fill, indexes
from tests.unit.experience.groups import POLICIES, append, request, sent

from flexmarl.experience.keys import Keys
from flexmarl.experience.samples import GroupId
from flexmarl.experience.store import Store
from flexmarl.runtime.errors import (
    InvalidRequestError,
)


def dead_letters(reason: str) -> float:
    name = "flexmarl_experience_dead_letters_total"
    return REGISTRY.get_sample_value(name, {"reason": reason}) or 0.0


@pytest.mark.parametrize("damage", ["undecodable", "lost", "lost data"])
async def test_a_damaged_entry_is_buried_and_played_again_for_its_policy_alone(
    server: Server, store: Store, another: Store, uid: str, damage: str
) -> None:
    incarnation = await fill(store, 0, 3)
    keys, reason = Keys(uid), damage.partition(" ")[0]
    before = dead_letters(reason)
    with server.client() as client:
        stream_id = client.xrange(keys.stream("solver"))[1][0].decode()
        if damage == "lost":
            client.xdel(keys.stream("solver"), stream_id)
        elif damage == "lost data":
            client.delete(keys.data("solver", stream_id))
        else:
            client.setrange(keys.data("solver", stream_id), 7, b"\xff garbage")
    epoch = await epoch_of(store)
    assert await indexes(another, "solver", epoch, 0) == [0, 2]
    assert dead_letters(reason) == before + 1
    assert (await store.stored(0)).indexes == [0, 2]
    with server.client() as client:
        [(_, letter)] = client.xrange(keys.dead("solver"))
        assert (letter[b"dead:step"], letter[b"dead:index"]) == (b"0", b"1")
        assert not client.exists(keys.data("solver", stream_id))

    assert await append(store, sent(GroupId(incarnation, 0, 1)))
    assert not await append(store, sent(GroupId(incarnation, 0, 1)))
    assert (await store.stored(0)).indexes == [0, 1, 2]
    assert sorted(await indexes(store, "solver", epoch, 0)) == [0, 1, 2]
    verifier = await epoch_of(store, "verifier")
    assert await indexes(store, "verifier", verifier, 0) == [0, 1, 2]


async def test_what_several_policies_lost_is_played_again_for_each_of_them(
    server: Server, store: Store, another: Store, uid: str
) -> None:
    incarnation = await fill(store, 0, 3)
    keys = Keys(uid)
    epochs = {policy: await epoch_of(store, policy) for policy in POLICIES}
    for policy, epoch in epochs.items():
        with server.client() as client:
            stream_id = client.xrange(keys.stream(policy))[1][0].decode()
            client.delete(keys.data(policy, stream_id))
        assert await indexes(another, policy, epoch, 0) == [0, 2]
    assert await append(store, sent(GroupId(incarnation, 0, 1)))
    for policy, epoch in epochs.items():
        assert sorted(await indexes(store, policy, epoch, 0)) == [0, 1, 2]


async def test_a_server_that_lost_the_tail_of_its_log_lost_whole_groups(
    own_server: Server, uid: str
) -> None:
    """Cut anywhere, even inside a group: every policy lacks the same ones, and asks for them."""
    count = 12
    async with Store(own_server.url, uid, POLICIES) as store:
        incarnation = await store.take_incarnation()
        epochs = {policy: await epoch_of(store, policy) for policy in POLICIES}
        before = own_server.log.stat().st_size
        for index in range(count):
            await append(store, sent(GroupId(incarnation, 0, index)))
        await asyncio.to_thread(own_server.stop, signal.SIGKILL)
        whole = own_server.log.read_bytes()
        survivors = set()
        for cut in np.linspace(len(whole), before, 7, dtype=int):
            own_server.log.write_bytes(whole[:cut])
            await asyncio.to_thread(own_server.start)
            stored = (await store.stored(0)).indexes
            assert stored == list(range(len(stored)))
            survivors.add(len(stored))
            for index in range(count):
                fresh = await append(store, sent(GroupId(incarnation, 0, index)))
                assert fresh is (index not in stored)
            for policy, epoch in epochs.items():
                assert await indexes(store, policy, epoch, 0) == list(range(count))
            await asyncio.to_thread(own_server.stop, signal.SIGKILL)
        assert {0, count} < survivors


@pytest.mark.parametrize(("array", "words"), [
    ("token_ids", "there must be as many of each"), ("logprobs", "log-prob nan at position"),
])  # fmt: skip
async def test_bad_samples_are_refused_counted_once_and_named(
    store: Store, array: str, words: str
) -> None:
    incarnation = await store.take_incarnation()
    bad = request(GroupId(incarnation, 0, 0))
    samples = bad.policies[0]
    if array == "token_ids":
        samples.token_ids = samples.token_ids[:-4]
    else:
        samples.logprobs = samples.logprobs[:-4] + struct.pack("<f", float("nan"))
    before = refused()
    with pytest.raises(InvalidRequestError, match=f"1/0/0.*{words}"):
        await append(store, bad.SerializeToString())
    assert refused() == before + 1
    assert (await store.stored(0)).indexes == []


def refused() -> float:
    name = "flexmarl_experience_appends_total"
    return REGISTRY.get_sample_value(name, {"outcome": "refused"}) or 0.0
