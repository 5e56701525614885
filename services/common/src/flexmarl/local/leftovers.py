"""Removes what a job keeps in a store that outlives it; the embedded one ends with its job."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from flexmarl.contracts.job import MARLJob
from flexmarl.runtime.errors import FlexMARLError

SECONDS = 10.0
"""How long the end of a run waits for the store."""


async def forget(
    job: MARLJob,
    base_dir: Path,
    uids: Sequence[str],
    say: Callable[[str], None],
    hurry: asyncio.Event,
) -> None:
    """Remove all keys of the submissions `uids` of `job` from the server that it names; say so
    where they stay, also because of a hurry."""
    removing = asyncio.create_task(_remove(job, base_dir, uids))
    hurrying = asyncio.create_task(hurry.wait())
    try:
        await asyncio.wait(
            (removing, hurrying), timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        for task in (removing, hurrying):
            task.cancel()
        await asyncio.gather(removing, hurrying, return_exceptions=True)
    reason = "there was no time" if removing.cancelled() else removing.result()
    if reason:
        say(f"warning: keys of {uids[-1]} may be left in the store: {reason}")


async def _remove(job: MARLJob, base_dir: Path, uids: Sequence[str]) -> str:
    """Why it could not be done; empty: it is done."""
    from redis.exceptions import RedisError

    from flexmarl.experience.keys import job_tag
    from flexmarl.experience.store import Store

    named, spec = job.metadata, job.spec
    assert spec.store.url is not None
    try:
        for uid in uids:
            tag = job_tag(named.namespace, named.name, uid)
            ca_file = base_dir / spec.store.ca_file if spec.store.ca_file else None
            policies = spec.trained_policies
            async with Store(spec.store.url, tag, policies, ca_file=ca_file) as store:
                await store.forget()
    except (FlexMARLError, RedisError) as error:
        return str(error)
    return ""
