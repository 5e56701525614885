"""Removes what a job keeps in a store that outlives it; the embedded one ends with its job."""

import asyncio
import os
from collections.abc import Callable, Sequence

from flexmarl.runtime.errors import FlexMARLError

SECONDS = 10.0
"""How long the end of a run waits for the store."""
PAGE = 1000
"""Keys that the server looks at, and at most removes, in one command."""


async def forget(
    url: str, uids: Sequence[str], say: Callable[[str], None], hurry: asyncio.Event
) -> None:
    """Remove all keys of the jobs `uids`; say so where they stay, also because of a hurry."""
    removing = asyncio.create_task(_remove(url, uids))
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


async def _remove(url: str, uids: Sequence[str]) -> str:
    """Why it could not be done; empty: it is done."""
    from redis.exceptions import RedisError

    from flexmarl.experience.connection import connect, translated

    try:
        async with translated(), connect(url) as client:
            cursor = 0
            while True:
                # One pass over the server's keys, however many submissions there were.
                cursor, found = await client.scan(cursor, match="{*}:*", count=PAGE)
                ours = [key for key in found if uid_of(os.fsdecode(key)) in uids]
                if ours:
                    await client.unlink(*ours)
                if cursor == 0:
                    return ""
    except (FlexMARLError, RedisError) as error:
        return str(error)


def uid_of(key: str) -> str:
    """Of the job whose key it is: keys start with `{uid}` or `{namespace/name/uid}`; else empty."""
    tag, closed, _ = key.partition("}:")
    return tag[1:].rpartition("/")[2] if closed and tag.startswith("{") else ""
