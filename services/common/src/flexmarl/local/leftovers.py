"""Removes what a job keeps in a store that outlives it; the embedded one ends with its job."""

import asyncio
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
        prefix = f"{{{uids[-1]}}}:"
        say(f"warning: keys that start with {prefix} may be left in the store: {reason}")


async def _remove(url: str, uids: Sequence[str]) -> str:
    """Why it could not be done; empty: it is done."""
    from redis.exceptions import RedisError

    from flexmarl.experience.connection import connect, translated
    from flexmarl.experience.keys import Keys

    prefixes = tuple(Keys(uid).prefix.encode() for uid in uids)
    try:
        async with translated(), connect(url) as client:
            cursor = 0
            while True:
                # One pass over the server's keys, however many submissions there were.
                cursor, found = await client.scan(cursor, match="{*}:*", count=PAGE)
                ours = [key for key in found if key.startswith(prefixes)]
                if ours:
                    await client.unlink(*ours)
                if cursor == 0:
                    return ""
    except (FlexMARLError, RedisError) as error:
        return str(error)
