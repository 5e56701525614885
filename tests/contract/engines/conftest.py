"""Engines of all kinds behind a real gRPC server, fed from real tensor sets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from tests.contract.engines.harness import Client, Weights, make_backend

from flexmarl.contracts.v1 import engine_pb2_grpc
from flexmarl.rollout.engines.base import Backend
from flexmarl.rollout.engines.scheduler import ScheduledEngine
from flexmarl.rollout.engines.server import EngineService
from flexmarl.runtime.grpc import channel, serving


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[Weights]:
    held = Weights(tmp_path)
    yield held
    held.set.close()


Serve = Callable[[Backend], AbstractAsyncContextManager[Client]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Serve a backend, without weights, over a real connection."""

    @asynccontextmanager
    async def start(backend: Backend) -> AsyncIterator[Client]:
        async with (
            ScheduledEngine(backend) as engine,
            serving(
                lambda server: engine_pb2_grpc.add_EngineServicer_to_server(
                    EngineService(engine), server
                ),
                f"unix://{tmp_path}/engine.sock",
                drain_seconds=0,
            ) as address,
            channel(address) as connection,
        ):
            yield Client(engine_pb2_grpc.EngineStub(connection))

    return start


@pytest.fixture(params=["transformers", "deterministic", "scripted"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def engine(kind: str, weights: Weights, serve: Serve) -> AsyncIterator[Client]:
    """Holds version 0 of policy "a"."""
    async with serve(make_backend(kind, weights.shm_dir)) as client:
        await client.load(weights.publish(0))
        yield client
