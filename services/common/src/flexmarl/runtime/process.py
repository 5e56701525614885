"""Start a process, stop it on SIGTERM."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

HOPELESS = 3
"""Exit code of a process that a restart cannot mend; the last line on stderr says why."""


class _StopError(Exception):
    pass


async def run_until_signalled(*jobs: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `jobs` together; the first failure or a SIGTERM/SIGINT cancels the rest.

    Returns when every job has returned, or after a signal once all are cancelled. A job that fails
    surfaces in an ExceptionGroup.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop.set)

    async def watch() -> None:
        await stop.wait()
        raise _StopError

    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(watch())
            running = [group.create_task(job()) for job in jobs]
            await asyncio.gather(*running)
            watcher.cancel()
    except* _StopError:
        pass


async def forever() -> None:
    """A job that ends only when cancelled: for processes that merely serve."""
    await asyncio.Event().wait()
