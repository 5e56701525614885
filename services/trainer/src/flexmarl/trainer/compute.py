"""The one thread in which a slot computes, so that its event loop stays free."""

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

import torch

T = TypeVar("T")

SMALL_PARAMETERS = 20_000_000
"""Below this more threads cost more than they give, and spin against the engines."""
SWITCH_SECONDS = 5e-4
"""For which Python code of the thread keeps the event loop waiting; by default 5 ms."""


def threads_for(parameters: int, cpus: int, slots: int) -> int:
    """Threads of one slot: one for small models, else its share of all cores but one."""
    return 1 if parameters < SMALL_PARAMETERS else max(1, (cpus - 1) // slots)


class Compute:
    """Runs functions one after the other in a thread of their own. Use as `async with`."""

    def __init__(self, slots: int = 1) -> None:
        self._slots = slots
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="compute")

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`. A cancelled caller leaves only once `work` has ended."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # seen: the caller is gone, nobody else will ask
            raise

    def fit(self, parameters: int) -> None:
        """Set the number of threads inside torch for a model of this size; call it in `run`."""
        torch.set_num_threads(threads_for(parameters, len(os.sched_getaffinity(0)), self._slots))

    async def __aenter__(self) -> Self:
        sys.setswitchinterval(SWITCH_SECONDS)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._executor.shutdown)
