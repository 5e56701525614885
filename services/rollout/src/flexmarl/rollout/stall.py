"""Ends a worker whose interpreter the user's code holds: no timeout in Python can reach that.

A C function that never lets go of the interpreter's lock (a regular expression, a huge power)
stops every episode and every call. `faulthandler` watches from outside the interpreter; the worker
then dies with the stacks of its threads as its last words, one of which names the line of code, and
the supervisor decides about a restart.
"""

from __future__ import annotations

import asyncio
import faulthandler
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

HEARTBEAT_SECONDS = 1.0


@asynccontextmanager
async def dying_when_stalled(seconds: float) -> AsyncIterator[None]:
    """In the block, the process exits with code 1 when the event loop stands still for `seconds`.

    The stacks of all threads are on stderr then.
    """
    beating = asyncio.create_task(_beat(seconds))
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        faulthandler.cancel_dump_traceback_later()


async def _beat(seconds: float) -> None:
    while True:
        faulthandler.dump_traceback_later(seconds, exit=True)
        await asyncio.sleep(HEARTBEAT_SECONDS)
