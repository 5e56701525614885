"""The process of a slot, and the sidecar that starts beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.trainer.conftest import job

from flexmarl.runtime.errors import NotBegunError
from flexmarl.runtime.grpc import serving, wait_ready
from flexmarl.runtime.settings import Settings
from flexmarl.trainer import process


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        job_file=tmp_path / "job.yaml",
        job_uid="uid",
        listen=f"unix://{tmp_path}/slot.sock",
        experience=f"unix://{tmp_path}/experience.sock",
        weights=f"unix://{tmp_path}/weights.sock",
        drain_seconds=0.1,
    )


@pytest.fixture
async def slot(settings: Settings) -> AsyncIterator[asyncio.Task[None]]:
    running = asyncio.create_task(process.body(settings, job()))
    yield running
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_slot_is_ready_once_its_sidecar_is(
    settings: Settings, slot: asyncio.Task[None]
) -> None:
    with pytest.raises(TimeoutError):
        await wait_ready(settings.listen, 0.5)
    assert not slot.done()
    async with serving(lambda server: None, settings.weights, drain_seconds=0.1):
        await wait_ready(settings.listen, 30)


async def test_without_its_sidecar_a_slot_is_to_be_started_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SIDECAR_SECONDS", 0.2)
    with pytest.raises(NotBegunError, match=r"sidecar at unix://.* does not answer in 0\.2 s"):
        await process.body(settings, job())
