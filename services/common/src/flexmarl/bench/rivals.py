"""Other people's stores that ours is compared with, where they are installed."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np

IN_FLIGHT = 8
"""Groups that are put, fetched and cleared at once, on both sides."""


@dataclass(frozen=True, slots=True)
class Rival:
    name: str
    rate: Callable[[str, Mapping[str, np.ndarray], int, int], Awaitable[float]]
    """(name of the round, arrays of a sample, samples in a group, groups): groups per second."""


def find(say: Callable[[str], None]) -> AbstractAsyncContextManager[Rival] | None:
    if find_spec("transfer_queue") is None:
        say("transferqueue is not installed, it is left out: pip install transferqueue")
        return None
    return transferqueue()


@asynccontextmanager
async def transferqueue() -> AsyncIterator[Rival]:
    """Its key-value calls on its own default storage; its processes are Ray's."""
    ray, torch = importlib.import_module("ray"), importlib.import_module("torch")
    tensordict = importlib.import_module("tensordict")
    queue = importlib.import_module("transfer_queue")
    torch.set_num_threads(1)

    async def rate(name: str, arrays: Mapping[str, np.ndarray], size: int, groups: int) -> float:
        fields = tensordict.TensorDict(
            {
                field: torch.from_numpy(array.copy()).expand(size, -1).contiguous()
                for field, array in arrays.items()
            },
            batch_size=size,
        )
        waiting = iter(range(groups))

        async def cycle() -> None:
            for number in waiting:
                keys = [f"{number}/{sample}" for sample in range(size)]
                await queue.async_kv_batch_put(keys=keys, partition_id=name, fields=fields)
                await queue.async_kv_batch_get(keys=keys, partition_id=name)
                await queue.async_kv_clear(keys=keys, partition_id=name)

        began = time.perf_counter()
        await asyncio.gather(*(cycle() for _ in range(IN_FLIGHT)))
        return groups / (time.perf_counter() - began)

    # Its storage units and controller ask for a core each and would else wait for more.
    await asyncio.to_thread(
        ray.init, num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    try:
        await asyncio.to_thread(queue.init)
        yield Rival(f"transferqueue {version('transferqueue')}", rate)
    finally:
        await asyncio.to_thread(queue.close)
        await asyncio.to_thread(ray.shutdown)
