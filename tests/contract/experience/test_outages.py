"""The server or the service goes away and comes back: calls go on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.experience.conftest import Server
from tests.contract.experience.filling import epoch_of, fill, indexes
from tests.unit.experience.groups import POLICIES, append, samples_of, sent

from flexmarl.experience.arrivals import Arrivals
from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.samples import GroupId, to_wire
from flexmarl.experience.server import register
from flexmarl.experience.store import Store
from flexmarl.experience.wire import Part
from flexmarl.runtime.errors import FlexMARLError, UnavailableError
from flexmarl.runtime.grpc import serving

Append = Callable[..., Awaitable[list[bool | FlexMARLError]]]


async def test_calls_go_on_after_the_server_was_killed_and_started_again(
    own_server: Server, uid: str
) -> None:
    async with (
        asyncio.timeout(120),
        Store(own_server.url, uid, POLICIES) as store,
        serving(register(store), "127.0.0.1:0") as address,
        ExperienceClient(address) as client,
    ):
        incarnation = await client.take_incarnation()
        epoch = await epoch_of(client)
        group = GroupId(incarnation, 0, 0)
        assert await client.append_group(group, "t", samples_of(group))
        waiting = asyncio.ensure_future(client.lease("solver", epoch, 1, wait=60))
        await asyncio.sleep(0.1)

        await asyncio.to_thread(own_server.stop, signal.SIGKILL)
        meanwhile = asyncio.ensure_future(client.append_group(group, "t", samples_of(group)))
        await asyncio.sleep(0.3)
        assert not meanwhile.done()
        await asyncio.to_thread(own_server.start)

        assert not await meanwhile  # the server read its log, so it is there
        assert (await client.stored(0)).indexes == {0}
        later = GroupId(incarnation, 1, 0)
        await client.append_group(later, "t", samples_of(later))
        assert [each.id for each in (await waiting).groups] == [later]


async def test_calls_go_on_after_the_service_was_replaced(
    server: Server, uid: str, tmp_path: Path
) -> None:
    address = f"unix:{tmp_path}/e.sock"
    async with ExperienceClient(address) as client:
        async with Store(server.url, uid, POLICIES) as store, serving(register(store), address):
            incarnation = await client.take_incarnation()
        group = GroupId(incarnation, 0, 0)
        appending = asyncio.ensure_future(client.append_group(group, "t", samples_of(group)))
        await asyncio.sleep(0.2)
        async with Store(server.url, uid, POLICIES) as store, serving(register(store), address):
            assert await appending
            assert (await client.stored(0)).indexes == {0}


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(ticks=st.integers(0, 60))
async def test_a_store_closes_at_any_moment(server: Server, ticks: int) -> None:
    """Also in the middle of connecting."""
    async with asyncio.timeout(20), Store(server.url, "closing", POLICIES):
        for _ in range(ticks):
            await asyncio.sleep(0)


async def test_a_killed_server_keeps_what_it_acknowledged(own_server: Server, uid: str) -> None:
    async with Store(own_server.url, uid, POLICIES) as store:
        incarnation = await fill(store, 3, 5)
        epoch = await epoch_of(store)
        await store.put_state(incarnation, {"step": "3"})
        await store.close_step(incarnation, 2)
        await asyncio.to_thread(own_server.stop, signal.SIGKILL)
        await asyncio.to_thread(own_server.start)
        assert (await store.stored(3)).indexes == [0, 1, 2, 3, 4]
        assert (await store.stored(2)).closed
        assert await store.get_state() == {"step": "3"}
        assert await indexes(store, "solver", epoch, 3) == [0, 1, 2, 3, 4]
        assert await store.take_incarnation() == incarnation + 1


async def test_cut_connections_are_made_again(server: Server, client: ExperienceClient) -> None:
    """Whatever they were doing: appending, leasing, waiting for arrivals."""
    incarnation, epoch = await client.take_incarnation(), await epoch_of(client)
    waiting = asyncio.ensure_future(client.lease("solver", epoch, 1, wait=60))

    async def produce(first: int) -> None:
        for index in range(first, 100, 5):
            group = GroupId(incarnation, 0, index)
            await client.append_group(group, "t", samples_of(group))

    producing = [asyncio.ensure_future(produce(first)) for first in range(5)]
    with server.client() as admin:
        while not all(each.done() for each in producing):
            admin.client_kill_filter(_type="normal", skipme=True)
            admin.client_kill_filter(_type="pubsub", skipme=True)
            await asyncio.sleep(0.02)
    await asyncio.gather(*producing)
    assert (await client.stored(0)).indexes == frozenset(range(100))
    group = GroupId(incarnation, 1, 0)
    await client.append_group(group, "t", samples_of(group))
    assert [each.id for each in (await waiting).groups] == [group]


async def test_a_frozen_server_is_waited_for_and_answers_stay_apart(
    own_server: Server, uid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the network pauses: calls time out, and late answers reach nobody else."""
    monkeypatch.setattr("flexmarl.experience.connection.ANSWER_SECONDS", 0.3)
    async with (
        asyncio.timeout(120),
        Store(own_server.url, uid, POLICIES) as store,
        serving(register(store), "127.0.0.1:0") as address,
        ExperienceClient(address) as client,
    ):
        incarnation = await client.take_incarnation()
        epochs = {policy: await epoch_of(client, policy) for policy in POLICIES}
        assert own_server.process is not None
        own_server.process.send_signal(signal.SIGSTOP)
        groups = [GroupId(incarnation, 0, index) for index in range(30)]
        calls = [
            asyncio.ensure_future(client.append_group(group, "t", samples_of(group)))
            for group in groups
        ]
        leases = [
            asyncio.ensure_future(client.lease(policy, epoch, 0, wait=30))
            for policy, epoch in epochs.items()
        ]
        await asyncio.sleep(1.5)
        assert not any(call.done() for call in (*calls, *leases))
        own_server.process.send_signal(signal.SIGCONT)
        await asyncio.gather(*calls)
        for lease in await asyncio.gather(*leases):
            assert lease.groups
        assert (await client.stored(0)).indexes == frozenset(range(30))
        for policy, epoch in epochs.items():
            found = await client.lease(policy, epoch, 0)
            assert sorted(each.id.index for each in found.groups) == list(range(30))
            for each in found.groups:
                wanted = next(one for one in samples_of(each.id) if one.policy == policy)
                assert to_wire(each.samples, each.id) == to_wire(wanted, each.id)


async def test_a_server_that_lost_its_memory_takes_everything_again(
    own_server: Server, uid: str
) -> None:
    async with Store(own_server.url, uid, POLICIES) as store:
        incarnation = await fill(store, 0, 3)
        epoch = await epoch_of(store)
        await asyncio.to_thread(own_server.lose_memory)
        assert (await store.stored(0)).indexes == []
        assert await store.get_state() == {}
        for index in range(3):
            assert await append(store, sent(GroupId(incarnation, 0, index)))
        assert await indexes(store, "solver", epoch, 0) == [0, 1, 2]


async def test_a_watcher_of_arrivals_that_fails_ends_the_service(
    server: Server, uid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases would go on, a second late each, and nobody would know."""

    async def fails(self: Arrivals) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(Arrivals, "watch", fails)
    async with asyncio.timeout(60), Store(server.url, uid, POLICIES) as store:
        with pytest.raises(RuntimeError, match="unforeseen"):
            await store.serve()


def losing(store: Store, *, times: int, asked: list[int]) -> Append:
    """Its `append`, which loses everything so many times; `asked` gets how many groups came."""
    append = store.append

    async def loses(
        groups: Sequence[Part], played: Sequence[float] = ()
    ) -> list[bool | FlexMARLError]:
        asked.append(len(groups))
        lost = len(asked) <= times
        return [UnavailableError("lost") for _ in groups] if lost else await append(groups, played)

    return loses


async def test_a_group_that_the_store_lost_on_its_way_is_sent_again(
    server: Server, uid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours in the request were stored: the error is an outcome, not the call's."""
    async with (
        asyncio.timeout(30),
        Store(server.url, uid, POLICIES) as store,
        serving(register(store), "127.0.0.1:0") as address,
        ExperienceClient(address) as client,
    ):
        group = GroupId(await client.take_incarnation(), 0, 0)
        asked = list[int]()
        monkeypatch.setattr(store, "append", losing(store, times=1, asked=asked))
        assert await client.append_group(group, "t", samples_of(group))
        assert asked == [1, 1]


async def test_a_group_that_the_store_goes_on_losing_is_given_up(
    server: Server, uid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        asyncio.timeout(30),
        Store(server.url, uid, POLICIES) as store,
        serving(register(store), "127.0.0.1:0") as address,
        ExperienceClient(address, patience=0.3) as client,
    ):
        group = GroupId(await client.take_incarnation(), 0, 0)
        monkeypatch.setattr(store, "append", losing(store, times=1_000, asked=[]))
        with pytest.raises(UnavailableError, match="lost"):
            await client.append_group(group, "t", samples_of(group))
