"""The engine process, from its job file to its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contract.engines.harness import POLICY, Client, Weights, turn

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import engine_pb2_grpc
from flexmarl.rollout.engines import process
from flexmarl.rollout.engines.base import Backend
from flexmarl.rollout.engines.scheduler import EngineFailedError
from flexmarl.runtime.errors import InvalidJobError
from flexmarl.runtime.grpc import channel, wait_ready
from flexmarl.runtime.settings import Settings

URI = str(POLICY.model and POLICY.model.uri)


def make_job(**policy: Any) -> MARLJob:
    return MARLJob.model_validate(
        {
            "metadata": {"name": "job"},
            "spec": {
                "policies": [{"name": "a", "model": {"uri": URI}, **policy}],
                "agents": [{"name": "solver", "policy": "a"}],
                "workflow": {"name": "single"},
                "data": {"uri": "file://unused.jsonl"},
                "steps": 1,
            },
        }
    )


def make_settings(folder: Path) -> Settings:
    return Settings(
        job_file=folder / "job.yaml",
        job_uid="job",
        policy="a",
        listen=f"unix://{folder}/engine.sock",
        shm_dir=folder,
        drain_seconds=0,
    )


@asynccontextmanager
async def running(folder: Path, job: MARLJob) -> AsyncIterator[tuple[Client, asyncio.Task[None]]]:
    settings = make_settings(folder)
    serving = asyncio.create_task(process.body(settings, job))
    try:
        await wait_ready(settings.listen, 60)
        async with channel(settings.listen) as connection:
            yield Client(engine_pb2_grpc.EngineStub(connection)), serving
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("kind", ["transformers", "scripted"])
async def test_an_untrained_policy_is_served_at_once_as_version_0(
    kind: str, tmp_path: Path
) -> None:
    job = make_job(engine={"kind": kind}, training={"algorithm": "none"})
    async with running(tmp_path, job) as (client, _):
        stats = await client.stats()
        assert (stats.policy, stats.version, stats.loaded) == ("a", 0, True)
        first = await client.generate(turn("t"))
    (tmp_path / "again").mkdir()
    async with running(tmp_path / "again", job) as (client, _):
        again = await client.generate(turn("t"))
        assert (await client.stats()).checksum == stats.checksum
    assert first["t"].ids == again["t"].ids


@pytest.mark.parametrize("kind", ["transformers", "scripted"])
async def test_a_trained_policy_waits_for_its_weights(kind: str, tmp_path: Path) -> None:
    weights = Weights(tmp_path)
    async with running(tmp_path, make_job(engine={"kind": kind})) as (client, _):
        assert not (await client.stats()).loaded
        await client.load(weights.publish(4))
        assert (await client.generate(turn("t"), version=4))["t"].ids
    weights.set.close()


class OutOfMemory:
    def __init__(self, inner: Backend) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def step(self) -> None:
        raise MemoryError("no room for 7 GiB")


async def test_a_broken_engine_answers_its_callers_and_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = process.make_backend
    monkeypatch.setattr(process, "make_backend", lambda *args: OutOfMemory(make(*args)))
    job = make_job(engine={"kind": "scripted"}, training={"algorithm": "none"})
    async with running(tmp_path, job) as (client, serving):
        with pytest.raises(Exception, match="MemoryError: no room for 7 GiB"):
            await client.generate(turn("t"))
        with pytest.raises(EngineFailedError, match="no room for 7 GiB"):
            await serving


def test_a_policy_without_an_engine_process_is_refused(tmp_path: Path) -> None:
    job = make_job(
        engine={"kind": "openai", "openai": {"baseUrl": "http://x/v1", "model": "m"}},
        training={"algorithm": "none"},
    )
    with pytest.raises(InvalidJobError, match="openai"):
        process.make_backend(make_settings(tmp_path), job, job.spec.policies[0])
