"""Connections to the job's other processes, and the wait until all of them are there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc.aio
import structlog

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import trainer_pb2_grpc
from flexmarl.experience.client import ExperienceClient
from flexmarl.orchestrator.directory import SECONDS, Directory
from flexmarl.orchestrator.limits import Limits
from flexmarl.runtime.errors import InvalidJobError, JobFailedError
from flexmarl.runtime.grpc import channel, wait_ready
from flexmarl.runtime.settings import Settings

ASK_SECONDS = 10.0
"""For one to be ready, before it is looked up again."""
SAY_SECONDS = 10.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Services:
    experience: ExperienceClient
    asking: ExperienceClient
    """The same service; it soon gives up, and says why."""
    directory: Directory
    """Of workers and engines."""
    trainers: list[trainer_pb2_grpc.TrainerAsyncStub]
    """By slot."""
    slots: list[list[str] | None]
    """The policies that each slot may train; None: any."""


def crews(job: MARLJob) -> tuple[list[str], list[str]]:
    """The policies that have engines of their own, and the pools of engines."""
    pools = job.spec.engine_pools
    shared = {policy for policies in pools.values() for policy in policies}
    return [policy for policy in job.spec.local_policies if policy not in shared], list(pools)


def named(job: MARLJob, settings: Settings) -> dict[str, str]:
    """What each service is called in messages -> its address. InvalidJobError: one has none."""
    found = {"experience": settings.experience}
    own, pools = crews(job)
    found |= {f"trainer {number}": address for number, address in enumerate(settings.trainers)}
    if settings.discovery is not None:
        missing = [name for name, address in found.items() if not address]
        missing += [] if settings.trainers or not job.spec.trained_policies else ["a trainer"]
        missing += [
            f"engines of {name}"
            for name in own + pools
            if name not in settings.discovery.engines | settings.discovery.pools
        ]
        if missing:
            raise InvalidJobError(f"no address is set for {', '.join(missing)}")
        return found
    found |= {f"worker {number}": address for number, address in enumerate(settings.workers)}
    known = settings.engines | settings.pools
    for name in own + pools:
        for number, address in enumerate(known.get(name, [])):
            found[f"engine {number} of {name}"] = address
    missing = [name for name, address in found.items() if not address]
    missing += [] if settings.workers else ["a worker"]
    missing += [] if settings.trainers or not job.spec.trained_policies else ["a trainer"]
    missing += [f"an engine of {name}" for name in own + pools if not known.get(name)]
    if missing:
        raise InvalidJobError(f"no address is set for {', '.join(missing)}")
    return found


async def wait_for_everyone(
    addresses: Mapping[str, str],
    directory: Directory,
    seconds: float,
    tell: Callable[[Callable[[], list[str]]], None],
) -> None:
    """Return once every service says SERVING, and there is one of each kind that comes and goes.

    `tell` is given what says who is missing; so does JobFailedError when the time is over.
    """
    missing = dict(addresses)

    def lacking() -> list[str]:
        named = [f"{name} at {address}" for name, address in sorted(missing.items())]
        return named + directory.missing()

    async def one(name: str, address: str) -> None:
        while name in missing:
            try:
                await wait_ready(address, ASK_SECONDS)
            except TimeoutError:
                continue  # by a new connection: its name may mean another pod by now
            except grpc.aio.AioRpcError:  # it listens, and is not what it should be yet
                await asyncio.sleep(SECONDS)
            else:
                del missing[name]

    async def some() -> None:
        await directory.look()
        while directory.missing():
            await asyncio.sleep(SECONDS)
            await directory.look()

    async def say() -> None:
        said: list[str] = []
        while True:
            await asyncio.sleep(SAY_SECONDS)
            if (now := lacking()) != said:
                said = now
                log.info("waiting for services", missing=said)

    tell(lacking)
    try:
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            saying = group.create_task(say())
            await asyncio.gather(some(), *(one(*named) for named in addresses.items()))
            saying.cancel()
    except TimeoutError:
        listed = ", ".join(lacking())
        raise JobFailedError(f"not ready within {seconds:g} s: {listed}; see their logs") from None


@asynccontextmanager
async def connected(job: MARLJob, settings: Settings, limits: Limits) -> AsyncIterator[Services]:
    """Channels to everyone, closed at the end of the block."""
    async with AsyncExitStack() as stack:

        async def open_channel(address: str) -> grpc.aio.Channel:
            return await stack.enter_async_context(channel(address, settings.token))

        own, pools = crews(job)
        directory = Directory(
            settings.token,
            own,
            settings.discovery,
            pools=pools,
            workers=settings.workers,
            engines=settings.engines | settings.pools,
        )
        stack.push_async_callback(directory.close)
        directory.open()
        yield Services(
            experience=await stack.enter_async_context(
                ExperienceClient(settings.experience, settings.token, patience=limits.store)
            ),
            asking=await stack.enter_async_context(
                ExperienceClient(
                    settings.experience,
                    settings.token,
                    timeout=limits.short_call,
                    patience=limits.short_call / 2,
                )
            ),
            directory=directory,
            trainers=[
                trainer_pb2_grpc.TrainerStub(await open_channel(address))
                for address in settings.trainers
            ],
            slots=[settings.slot_policies.get(address) for address in settings.trainers],
        )
