"""Connections to the job's other processes, and the wait until all of them are there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc.aio
import structlog

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import engine_pb2_grpc, rollout_pb2_grpc, trainer_pb2_grpc
from flexmarl.experience.client import ExperienceClient
from flexmarl.runtime.errors import InvalidJobError, JobFailedError
from flexmarl.runtime.grpc import channel, wait_ready
from flexmarl.runtime.settings import Settings

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Services:
    experience: ExperienceClient
    workers: dict[str, rollout_pb2_grpc.RolloutAsyncStub]
    """By address."""
    engines: dict[str, dict[str, engine_pb2_grpc.EngineAsyncStub]]
    """By policy and address."""
    trainers: list[trainer_pb2_grpc.TrainerAsyncStub]
    """By slot."""


def named(job: MARLJob, settings: Settings) -> dict[str, str]:
    """What each service is called in messages -> its address. InvalidJobError: one has none."""
    found = {"experience": settings.experience}
    found |= {f"worker {number}": address for number, address in enumerate(settings.workers)}
    found |= {f"trainer {number}": address for number, address in enumerate(settings.trainers)}
    for policy in job.spec.local_policies:
        for number, address in enumerate(settings.engines.get(policy, [])):
            found[f"engine {number} of {policy}"] = address
    missing = [name for name, address in found.items() if not address]
    missing += [] if settings.workers else ["a worker"]
    missing += [] if settings.trainers or not job.spec.trained_policies else ["a trainer"]
    missing += [
        f"an engine of {policy}"
        for policy in job.spec.local_policies
        if not settings.engines.get(policy)
    ]
    if missing:
        raise InvalidJobError(f"no address is set for {', '.join(missing)}")
    return found


async def wait_for_all(addresses: dict[str, str], seconds: float) -> None:
    """Return once every service says SERVING; JobFailedError names those that did not."""
    missing = dict(addresses)

    async def one(name: str, address: str) -> None:
        try:
            await wait_ready(address, seconds)
        except TimeoutError:
            return
        del missing[name]

    async def report() -> None:
        while True:
            await asyncio.sleep(10)
            log.info("waiting for services", missing=sorted(missing))

    async with asyncio.TaskGroup() as group:
        reporter = group.create_task(report())
        await asyncio.gather(*(one(name, address) for name, address in addresses.items()))
        reporter.cancel()
    if missing:
        listed = ", ".join(f"{name} at {address}" for name, address in sorted(missing.items()))
        raise JobFailedError(f"not ready within {seconds:g} s: {listed}; see their logs")


@asynccontextmanager
async def connected(job: MARLJob, settings: Settings) -> AsyncIterator[Services]:
    """Channels to everyone, closed at the end of the block."""
    async with AsyncExitStack() as stack:

        async def open_channel(address: str) -> grpc.aio.Channel:
            return await stack.enter_async_context(channel(address, settings.token))

        yield Services(
            experience=await stack.enter_async_context(
                ExperienceClient(settings.experience, settings.token)
            ),
            workers={
                address: rollout_pb2_grpc.RolloutStub(await open_channel(address))
                for address in settings.workers
            },
            engines={
                policy: {
                    address: engine_pb2_grpc.EngineStub(await open_channel(address))
                    for address in settings.engines[policy]
                }
                for policy in job.spec.local_policies
            },
            trainers=[
                trainer_pb2_grpc.TrainerStub(await open_channel(address))
                for address in settings.trainers
            ],
        )
