"""A store that all jobs share and that does not answer holds up no look at any job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import ValidationError
from tests.contract.controller.bad_jobs import sound
from tests.contract.controller.conftest import IMAGES, World
from tests.contract.controller.test_store import JOB

from flexmarl.controller import store
from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.cluster import RefusedError
from flexmarl.controller.reconcile import Reconciler
from flexmarl.controller.settings import ControllerSettings
from flexmarl.controller.store import JobUsers
from flexmarl.runtime.errors import UnavailableError


@dataclass
class Silent:
    """Takes connections, and says nothing."""

    url: str = ""
    asked: int = 0


@pytest.fixture
async def silent(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Silent]:
    monkeypatch.setattr(store, "ANSWER_SECONDS", 0.3)
    found, writers = Silent(), list[asyncio.StreamWriter]()

    async def connected(reader: Any, writer: asyncio.StreamWriter) -> None:
        found.asked += 1
        writers.append(writer)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    found.url = f"redis://operator:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield found
    server.close()
    for writer in writers:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    await server.wait_closed()


async def test_it_is_asked_once_for_all_jobs_and_again_after_a_while(
    silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = JobUsers(silent.url, "here")
    async with asyncio.timeout(30):
        for _ in range(5):
            with pytest.raises(UnavailableError, match=r"no answer within 0\.3 s"):
                await users.admit(*JOB, "pw")
            with pytest.raises(UnavailableError):
                await users.users()
        assert silent.asked == 1
        monkeypatch.setattr(store, "PAUSE_SECONDS", 0.0)
        users = JobUsers(silent.url, "here")
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await users.forget({"flexmarl/here/a"})
        assert silent.asked == 3


async def test_jobs_are_told_and_looked_at_again(silent: Silent, world: World) -> None:
    settings = ControllerSettings(
        images=IMAGES, namespaces=[world.namespace], store_url=silent.url, installation_uid="here"
    )
    async with Orchestrators() as asker:
        world.reconciler = Reconciler(settings, world.cluster, world.cache, asker)
        for name in ("one", "other"):
            made = sound()
            made["metadata"]["name"] = name
            key = await world.submit(made)
            await world.read()
            assert await world.reconciler.look(key) < time.time() + 2 * store.PAUSE_SECONDS
            status = await world.look(key)
            assert (status["phase"], status["reason"]) == ("Starting", "StoreUnreachable")
            assert "no answer within 0.3 s" in status["message"]
        assert silent.asked == 1


async def test_an_api_server_that_is_away_is_not_taken_for_the_store(
    silent: Silent, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ControllerSettings(
        images=IMAGES, namespaces=[world.namespace], store_url=silent.url, installation_uid="here"
    )

    async with Orchestrators() as asker:
        world.reconciler = Reconciler(settings, world.cluster, world.cache, asker)
        key = await world.submit(sound())
        await world.read()
        call = world.cluster._api.call_api

        async def cut(method: str, at: str, *more: Any, **options: Any) -> Any:
            if "/secrets/" in at:
                raise TimeoutError
            return await call(method, at, *more, **options)

        monkeypatch.setattr(world.cluster._api, "call_api", cut)
        with pytest.raises(RefusedError, match="no answer within"):
            await world.reconciler.look(key)
    status = (await world.cluster.call("GET", f"{world.path}/tiny"))["status"]
    assert (status["phase"], status["reason"]) == ("Starting", "PodsNotReady")
    assert silent.asked == 0


@pytest.mark.parametrize("url", ["valkey://store:6379", "store:6379", "redis://store:port"])
def test_a_url_that_names_no_store_ends_the_controller_at_once(url: str) -> None:
    with pytest.raises(ValidationError, match="store_url"):
        ControllerSettings(images=IMAGES, store_url=url)
