"""The service as others see it: through a channel, over outages, when memory is full."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.experience.conftest import TOKEN, Server
from tests.unit.experience.groups import POLICIES, request, samples_of

from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.connection import connect
from flexmarl.experience.keys import Keys
from flexmarl.experience.samples import GroupId, to_wire
from flexmarl.experience.server import register
from flexmarl.experience.store import Store
from flexmarl.runtime.errors import (
    FencedError,
    FullError,
    InvalidJobError,
    InvalidRequestError,
    JobFailedError,
    StalePolicyError,
    UnauthenticatedError,
    UnavailableError,
)
from flexmarl.runtime.grpc import serving, wait_ready


async def test_a_step_from_the_first_append_to_its_close(client: ExperienceClient) -> None:
    incarnation = await client.take_incarnation()
    for index in (1, 0):
        group = GroupId(incarnation, 0, index)
        assert await client.append_group(group, f"task-{index}", samples_of(group))
        assert not await client.append_group(group, f"task-{index}", samples_of(group))
    stored = await client.stored(0)
    assert (stored.indexes, stored.closed) == (frozenset({0, 1}), False)
    for number, policy in enumerate(POLICIES):
        epoch = await client.take_epoch(policy)
        lease = await client.lease(policy, epoch, 0, max_groups=1)
        rest = await client.lease(policy, epoch, 0, lease.cursor)
        assert [each.task_id for each in (*lease.groups, *rest.groups)] == ["task-1", "task-0"]
        for leased in (*lease.groups, *rest.groups):
            assert to_wire(leased.samples) == request(leased.id).policies[number]
        assert (await client.lease(policy, epoch, 0, rest.cursor, wait=0.01)).groups == ()
        assert await client.commit(policy, epoch, 0) == 2
    await client.put_state(incarnation, {"step": "1"})
    await client.close_step(incarnation, 0)
    assert (await client.stored(0)).closed
    assert await client.get_state() == {"step": "1"}
    assert await client.take_incarnation(roll_back_to=0) == incarnation + 1
    assert not (await client.stored(0)).closed


async def test_errors_come_back_as_what_they_are(client: ExperienceClient) -> None:
    old = await client.take_incarnation()
    new = await client.take_incarnation()
    group = GroupId(new, 0, 0)
    with pytest.raises(FencedError, match=f"incarnation {old} is over"):
        await client.append_group(GroupId(old, 0, 0), "t", samples_of(GroupId(old, 0, 0)))
    with pytest.raises(StalePolicyError, match="version 1"):
        await client.append_group(group, "t", samples_of(GroupId(new, 1, 0)))
    with pytest.raises(InvalidRequestError, match="it must carry each of"):
        await client.append_group(group, "t", samples_of(group)[:1])


async def test_garbage_is_refused_by_the_service_with_the_sequence_id(
    client: ExperienceClient,
) -> None:
    group = GroupId(await client.take_incarnation(), 0, 0)
    samples = samples_of(group)
    samples[1].sequences[1].token_ids.byteswap(inplace=True)
    with pytest.raises(InvalidRequestError, match=f"sequence {group}/1/verifier/0: token id"):
        await client.append_group(group, "t", samples)
    assert (await client.stored(0)).indexes == frozenset()


async def test_a_call_without_the_token_is_refused(store: Store) -> None:
    async with (
        serving(register(store), "127.0.0.1:0", token=TOKEN) as address,
        ExperienceClient(address, "another") as client,
    ):
        with pytest.raises(UnauthenticatedError):
            await client.take_incarnation()


async def test_a_service_that_stays_away_is_unavailable(tmp_path: Path) -> None:
    async with ExperienceClient(f"unix:{tmp_path}/nobody.sock", patience=0.3) as client:
        with pytest.raises(UnavailableError):
            await client.take_incarnation()


async def test_a_waiting_lease_does_not_hold_up_other_calls(client: ExperienceClient) -> None:
    epoch = await client.take_epoch("solver")
    waiting = asyncio.ensure_future(client.lease("solver", epoch, 0, wait=60))
    group = GroupId(await client.take_incarnation(), 0, 0)
    assert await client.append_group(group, "t", samples_of(group))
    assert (await waiting).groups[0].id == group


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
            epoch, cursor, found = await client.take_epoch(policy), "", list[int]()
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
                    await store.append(request(group, tokens=tokens))
                    filled += 1
            except FullError:
                pass
            producing = [asyncio.ensure_future(produce(step, index)) for index in range(groups)]
            await asyncio.sleep(0.5)
            assert filled > groups
            assert not all(each.done() for each in producing)  # a buffer that shrinks lets one in
            for policy in POLICIES:  # needs no memory, as it is what frees it
                epoch = await client.take_epoch(policy)
                assert await client.commit(policy, epoch, filler + step) == filled
            found = await asyncio.gather(*(consume(policy, step) for policy in POLICIES))
            await asyncio.gather(*producing)
            assert [sorted(each) for each in found] == [list(range(groups))] * 2


@pytest.mark.parametrize(("alone", "older"), [(True, False), (True, True), (False, False)])
async def test_a_step_that_can_never_fit_ends_the_job_in_words(
    small_server: Server, uid: str, alone: bool, older: bool
) -> None:
    """Unless an older step, or somebody else in the server, may still free memory."""
    async with asyncio.timeout(120), Store(small_server.url, uid, POLICIES, alone=alone) as store:
        incarnation = await store.take_incarnation()
        if older:
            await store.append(request(GroupId(incarnation, 0, 0), tokens=1))
        serving_job = asyncio.ensure_future(store.serve())

        async def fill() -> None:
            for index in range(10_000):
                await store.append(request(GroupId(incarnation, 1, index), tokens=8_000))

        with pytest.raises(FullError):
            await fill()
        done, _ = await asyncio.wait([serving_job], timeout=0.5)
        if alone and not older:
            with pytest.raises(JobFailedError, match=r"8 MiB are full after \d+ groups of step 1"):
                await serving_job
        else:
            assert not done
            serving_job.cancel()


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
        epoch = await client.take_epoch("solver")
        group = GroupId(incarnation, 0, 0)
        assert await client.append_group(group, "t", samples_of(group))
        waiting = asyncio.ensure_future(client.lease("solver", epoch, 1, wait=60))
        await asyncio.sleep(0.1)

        await asyncio.to_thread(own_server.stop, signal.SIGKILL)
        meanwhile = asyncio.ensure_future(client.append_group(group, "t", samples_of(group)))
        await asyncio.sleep(0.3)
        assert not meanwhile.done()
        await asyncio.to_thread(own_server.start)

        assert await meanwhile  # the server forgot it, so it is stored again
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


async def test_the_server_of_a_job_is_accepted(store: Store) -> None:
    assert (await store.check()).startswith("valkey ")


async def test_a_server_that_evicts_is_refused(own_server: Server, uid: str) -> None:
    with own_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    async with Store(own_server.url, uid, POLICIES) as store:
        with pytest.raises(InvalidJobError, match="maxmemory-policy is 'allkeys-lru'"):
            await store.check()


async def test_a_wrong_password_is_said(server: Server, uid: str) -> None:
    async with Store(f"unix://:wrong@{server.directory}/store.sock", uid, POLICIES) as store:
        with pytest.raises(InvalidJobError, match="refuses its user or password"):
            await store.check()


@pytest.mark.parametrize("url", ["http://localhost", "localhost:6379"])
def test_what_is_no_store_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidJobError, match=r"store\.url"):
        connect(url)


async def test_a_job_may_have_a_user_that_reaches_its_own_keys_only(
    server: Server, uid: str
) -> None:
    """What an ACL user of one job must be allowed, and that it is enough."""
    prefix = Keys(uid).prefix
    with server.client() as client:
        client.acl_setuser(
            "job",
            enabled=True,
            reset=True,
            passwords=["+secret"],
            keys=[f"{prefix}*"],
            channels=[f"{prefix}*"],
            categories=["+@all", "-@admin", "-@dangerous"],
            commands=["+info"],
        )
    url = f"unix://job:secret@{server.directory}/store.sock"
    async with Store(url, uid, POLICIES) as store:
        await store.check()
        group = GroupId(await store.take_incarnation(), 0, 0)
        epoch = await store.take_epoch("solver")
        waiting = asyncio.ensure_future(store.lease("solver", epoch, 0, wait=60))
        await asyncio.sleep(0.1)
        assert await store.append(request(group))
        assert len((await waiting).groups) == 1
        await store.commit("solver", epoch, 0)
        await store.close_step(1, 0)


async def test_the_process_serves_and_drains_while_a_lease_waits(
    server: Server, uid: str, tmp_path: Path
) -> None:
    address = f"unix:{server.directory}/experience.sock"
    environment = os.environ | {
        "FLEXMARL_JOB_FILE": str(server.directory / "job.yaml"),
        "FLEXMARL_JOB_UID": uid,
        "FLEXMARL_STORE_URL": server.url,
        "FLEXMARL_LISTEN": address,
        "FLEXMARL_TOKEN": TOKEN,
    }
    code = "from flexmarl.experience.process import main; main()"
    log = tmp_path / "log"
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, env=environment, stdout=sink, stderr=sink
        )
    try:
        await wait_ready(address, 60)
        async with ExperienceClient(address, TOKEN, patience=0.1) as client:
            epoch = await client.take_epoch("solver")
            waiting = asyncio.ensure_future(client.lease("solver", epoch, 0, wait=300))
            await asyncio.sleep(0.2)
            process.terminate()
            assert (await waiting).groups == ()
        async with asyncio.timeout(60):
            assert await process.wait() == 0, log.read_text()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_the_embedded_server_ends_on_sigterm_and_leaves_no_socket(own_server: Server) -> None:
    assert own_server.stop() == 0
    assert not (own_server.directory / "store.sock").exists()
    assert b'p"w' not in (own_server.directory / "store.log").read_bytes()
