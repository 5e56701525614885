"""The service as others see it: through a channel, and as a process."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from pathlib import Path

import pytest
from tests.contract.experience.conftest import TOKEN, Server
from tests.contract.experience.filling import epoch_of
from tests.ports import free_port
from tests.unit.experience.groups import POLICIES, message, request, samples_of, sequence

from flexmarl.contracts.preparation import PASSING
from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.samples import GroupId, PolicySamples
from flexmarl.experience.server import register
from flexmarl.experience.store import Store
from flexmarl.runtime.errors import (
    FencedError,
    InvalidRequestError,
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
        epoch = await epoch_of(client, policy)
        lease = await client.lease(policy, epoch, 0, max_groups=1)
        rest = await client.lease(policy, epoch, 0, lease.cursor)
        assert [each.task_id for each in (*lease.groups, *rest.groups)] == ["task-1", "task-0"]
        for leased in (*lease.groups, *rest.groups):
            assert message(leased.samples, leased.id) == request(leased.id).policies[number]
        assert (await client.lease(policy, epoch, 0, rest.cursor, wait=0.01)).groups == ()
        assert await client.commit(policy, epoch, 0) == 2
    await client.put_state(incarnation, {"step": "1"})
    await client.close_step(incarnation, 0)
    assert (await client.stored(0)).closed
    assert await client.get_state() == {"step": "1"}
    await client.roll_back(incarnation, 0)
    assert not (await client.stored(0)).closed


async def test_a_lease_says_when_each_group_was_played(client: ExperienceClient) -> None:
    incarnation, epoch = await client.take_incarnation(), await epoch_of(client)
    moments = list[float]()
    for index in range(2):
        group = GroupId(incarnation, 0, index)
        moments.append(time.perf_counter())
        await client.append_group(group, "t", samples_of(group))
        moments.append(time.perf_counter())
    await asyncio.sleep(0.3)
    lease = await client.lease("solver", epoch, 0)
    # The first told of none: its client had yet to learn of the service's clock. Of the second it
    # is known to half of what the quicker call took.
    off = min(moments[1] - moments[0], moments[3] - moments[2]) / 2
    assert moments[2] - off <= lease.played[1] <= moments[3] + off < time.perf_counter()
    # Nobody knows of those that come from the server: then it is when they were found.
    asked = time.perf_counter()
    again = await client.lease("solver", epoch, 0)
    assert all(asked <= moment <= time.perf_counter() for moment in again.played)


async def test_groups_that_travel_together_fare_each_by_itself(client: ExperienceClient) -> None:
    old = await client.take_incarnation()
    incarnation = await client.take_incarnation()
    again = GroupId(incarnation, 0, 7)
    assert await client.append_group(again, "t", samples_of(again))
    good = [GroupId(incarnation, 0, index) for index in range(40)]
    late = [GroupId(old, 0, index) for index in range(40, 45)]
    stale = [GroupId(incarnation, 1, index) for index in range(5)]

    async def offer(group: GroupId) -> bool | Exception:
        rows = (sequence(group, 0, policy, version=0) for policy in POLICIES)
        samples = [PolicySamples(row.agent, 0, (row,)) for row in rows]
        try:
            return await client.append_group(group, "t", samples)
        except (FencedError, StalePolicyError, InvalidRequestError) as error:
            return error

    mixed = [group for trio in itertools.zip_longest(good, late, stale) for group in trio if group]
    said = dict(zip(mixed, await asyncio.gather(*map(offer, mixed)), strict=True))
    assert {group: said[group] for group in good} == {group: group != again for group in good}
    assert {type(said[group]) for group in late} == {FencedError}
    assert {type(said[group]) for group in stale} == {StalePolicyError}
    assert (await client.stored(0)).indexes == frozenset(range(40))
    assert (await client.stored(1)).indexes == frozenset()


async def test_errors_come_back_as_what_they_are(client: ExperienceClient) -> None:
    old = await client.take_incarnation()
    new = await client.take_incarnation()
    group = GroupId(new, 0, 0)
    with pytest.raises(FencedError, match=f"incarnation {old} is over"):
        await client.append_group(GroupId(old, 0, 0), "t", samples_of(GroupId(old, 0, 0)))
    rows = (sequence(group, 0, policy, version=1) for policy in POLICIES)
    newer = [PolicySamples(row.agent, 1, (row,)) for row in rows]
    with pytest.raises(StalePolicyError, match="version 1"):
        await client.append_group(group, "t", newer)
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
    epoch = await epoch_of(client)
    waiting = asyncio.ensure_future(client.lease("solver", epoch, 0, wait=60))
    group = GroupId(await client.take_incarnation(), 0, 0)
    assert await client.append_group(group, "t", samples_of(group))
    assert (await waiting).groups[0].id == group


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
            epoch = await epoch_of(client)
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


async def test_a_service_whose_store_does_not_answer_asks_to_be_started_again(
    server: Server, tmp_path: Path
) -> None:
    environment = os.environ | {
        "FLEXMARL_JOB_FILE": str(server.directory / "job.yaml"),
        "FLEXMARL_JOB_UID": "uid",
        "FLEXMARL_STORE_URL": f"redis://127.0.0.1:{free_port()}",
        "FLEXMARL_LISTEN": "127.0.0.1:0",
        "FLEXMARL_TOKEN": TOKEN,
    }
    code = "from flexmarl.experience import process as p; p.START_SECONDS = 0.5; p.main()"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env=environment, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        _, said = await process.communicate()
    assert process.returncode == PASSING
    assert said.decode().splitlines()[-1].startswith("the store does not answer")


def test_the_embedded_server_ends_on_sigterm_and_leaves_no_socket(own_server: Server) -> None:
    assert own_server.stop() == 0
    assert not (own_server.directory / "store.sock").exists()
    assert b'p"w' not in (own_server.directory / "store.log").read_bytes()
