"""Which servers and users are accepted, and what is said to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.exceptions import NoPermissionError
from tests.contract.experience.conftest import Server, running
from tests.contract.experience.filling import epoch_of, leased
from tests.unit.experience.groups import POLICIES, append, sent

from flexmarl.experience.acl import COMMANDS, acl_rules
from flexmarl.experience.connection import connect
from flexmarl.experience.keys import job_tag
from flexmarl.experience.samples import GroupId
from flexmarl.experience.store import Store
from flexmarl.runtime.errors import (
    InvalidJobError,
)


async def test_the_server_of_a_job_is_accepted(store: Store) -> None:
    found = await store.check()
    assert found.name.startswith("valkey ")
    assert found.max_memory == 256 << 20


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


@contextmanager
def user(server: Server, *rules: str) -> Iterator[str]:
    """URL of a user of these rules, who is gone afterwards."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "job", "reset", "on", ">secret", *rules)
        client.execute_command("ACL", "LOG", "RESET")
        yield f"unix://job:secret@{server.directory}/store.sock"
        client.execute_command("ACL", "DELUSER", "job")


async def every_call(store: Store) -> None:
    await store.check()
    await store.roll_back(await store.take_incarnation(), 0)
    group = GroupId(await store.take_incarnation(), 0, 0)
    epoch = await epoch_of(store)
    waiting = asyncio.ensure_future(leased(store, "solver", epoch, 0, wait=60))
    await asyncio.sleep(0.1)
    assert await append(store, sent(group))
    assert not await append(store, sent(group))
    assert len((await waiting).groups) == 1
    assert (await store.stored(0)).indexes == [0]
    await store.put_state(group.incarnation, {"step": "0"})
    assert await store.get_state() == {"step": "0"}
    await store.commit("solver", epoch, 0, keep=1)
    await store.commit("solver", epoch, 1, keep=1)
    await store.close_step(group.incarnation, 0)
    await store.roll_back(await store.take_incarnation(), 0)
    await store.forget()


async def test_a_user_needs_the_rules_of_its_job_and_no_more(server: Server, uid: str) -> None:
    with user(server, *acl_rules(uid)) as url, server.client() as admin:
        async with Store(url, uid, POLICIES) as store:
            await every_call(store)
        assert {entry["object"] for entry in admin.acl_log()} <= {"client|setinfo"}
        async with Store(url, "another/job/1", POLICIES) as store:
            with pytest.raises(
                InvalidJobError, match=r"~\{another/job/1\}:\* &\{another/job/1\}:\*"
            ):
                await store.check()
            with pytest.raises(NoPermissionError):
                await store.take_incarnation()


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_missing_right_is_named_at_the_start(
    server: Server, uid: str, command: str
) -> None:
    with user(server, *acl_rules(uid), f"-{command}") as url:
        async with Store(url, uid, POLICIES) as store:
            words = command.replace("|", r"\|")
            with pytest.raises(InvalidJobError, match=rf"lacks .*\b{words}"):
                await store.check()


@pytest.mark.parametrize(("rules", "words"), [
    (["resetkeys"], r"SETUSER: ~\{"), (["resetkeys", "%R~*"], r"SETUSER: ~\{"),
    (["resetchannels"], r"SETUSER: &\{"), (["nocommands"], "evalsha"),
])  # fmt: skip
async def test_missing_keys_and_channels_are_named_too(
    server: Server, uid: str, rules: list[str], words: str
) -> None:
    with user(server, *acl_rules(uid), *rules) as url:
        async with Store(url, uid, POLICIES) as store:
            with pytest.raises(InvalidJobError, match=words):
                await store.check()


async def test_the_embedded_store_lets_its_job_in_and_nobody_else() -> None:
    with running(user="job", uid="7") as server:
        socket = f"{server.directory}/store.sock"
        async with Store(server.url, job_tag("default", "store", "7"), POLICIES) as store:
            await every_call(store)
        for url in (f"unix://{socket}", f"unix://:p%22w%20%5C@{socket}", f"unix://job:x@{socket}"):
            async with Store(url, job_tag("default", "store", "7"), POLICIES) as store:
                with pytest.raises(InvalidJobError):
                    await store.check()
        async with Store(server.url, job_tag("default", "store", "8"), POLICIES) as store:
            with pytest.raises(InvalidJobError, match="lacks rights"):
                await store.check()


@pytest.mark.parametrize(("info", "words"), [
    ({"redis_version": "6.2.7"}, "redis 6.2.7; Redis >= 7"),
    ({"redis_version": "7.2.4", "valkey_version": "7.2.5"}, "valkey 7.2.5; Redis >= 7 or Valkey"),
    ({"redis_version": "7.0.1", "redis_mode": "cluster"}, "is a cluster"),
    ({"redis_version": "7.2.4", "valkey_version": "9.0.0", "server_mode": "cluster"}, "a cluster"),
    ({"redis_version": "7.0.1", "maxmemory_policy": "volatile-lru"}, "'volatile-lru'"),
])  # fmt: skip
async def test_servers_that_do_not_fit_are_refused(
    store: Store, info: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other servers are not at hand: what they say of themselves is put in place of this one's."""
    answer = {"maxmemory_policy": "noeviction", "maxmemory": 0, **info}

    async def say(_: Any, section: str) -> dict[str, Any]:
        return answer if section == "server" else {}

    monkeypatch.setattr("redis.asyncio.Redis.info", say)
    with pytest.raises(InvalidJobError, match=words):
        await store.check()
