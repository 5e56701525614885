"""What a job that is over leaves in a server that outlives it: nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.contract.experience.conftest import Server
from tests.contract.experience.filling import epoch_of, fill, indexes
from tests.contract.experience.test_access import user
from tests.contract.experience.test_tls import certificates, relay, url
from tests.unit.experience.groups import POLICIES, append, sent
from tests.unit.orchestrator.jobs import make_job

from flexmarl.experience.acl import acl_rules
from flexmarl.experience.keys import Keys, job_tag
from flexmarl.experience.samples import GroupId
from flexmarl.experience.store import Store
from flexmarl.local.leftovers import forget

__all__ = ["certificates"]


def keys_of(server: Server, tag: str) -> list[bytes]:
    with server.client() as client:
        found: list[bytes] = client.keys(f"{Keys(tag).prefix}*")
        return found


async def test_a_job_is_forgotten_whatever_it_has_stored_and_others_are_not(
    server: Server, uid: str
) -> None:
    """Committed, kept, waiting and dead groups, notes and state; with its own rights."""
    other = f"{uid}-other"
    async with Store(server.url, other, POLICIES) as store:
        await fill(store, 0, 1)
    with user(server, *acl_rules(uid)) as own:
        async with Store(own, uid, POLICIES) as store:
            incarnation = await fill(store, 0, 3)
            await store.put_state(incarnation, {"step": "1"})
            epochs = {policy: await epoch_of(store, policy) for policy in POLICIES}
            with server.client() as client:
                [(stream_id, _), *_] = client.xrange(Keys(uid).stream("solver"))
                client.delete(Keys(uid).data("solver", stream_id.decode()))
            async with Store(own, uid, POLICIES) as another:  # buries what it cannot read
                assert await indexes(another, "solver", epochs["solver"], 0) == [1, 2]
            await store.commit("solver", epochs["solver"], 0, keep=2)
            await store.commit("verifier", epochs["verifier"], 0)
            await store.close_step(incarnation, 0)
            for step in (1, 2):
                group = GroupId(incarnation, step, 0)
                assert await append(store, sent(group, note=b"note"))
            assert len(keys_of(server, uid)) > 15
            await store.forget()
    assert keys_of(server, uid) == []
    assert keys_of(server, other)


async def test_a_local_run_forgets_all_its_submissions_over_tls(
    server: Server,
    uid: str,
    certificates: Path,
) -> None:
    uids = [uid.rpartition("/")[2], "b7"]
    said: list[str] = []
    async with relay(server, certificates) as port:
        store = {"url": url(port), "caFile": "ca.pem"}
        job = make_job(store=store)
        tags = [job_tag(job.metadata.namespace, job.metadata.name, each) for each in uids]
        for tag in tags:
            async with Store(server.url, tag, ["p0", "p1"]) as own:
                await own.take_incarnation()
        await forget(job, certificates, uids, said.append, asyncio.Event())
        assert said == []
        assert [keys_of(server, tag) for tag in tags] == [[], []]
        other = make_job(store=store | {"caFile": "other.pem"})
        await forget(other, certificates, uids, said.append, asyncio.Event())
    assert "may be left in the store" in said[0]
