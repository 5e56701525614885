"""`flexmarl serve controller` as its pod runs it, with a real API server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.contract.controller.bad_jobs import sound
from tests.contract.controller.conftest import IMAGES, World
from tests.contract.controller.test_store import running

CODE = "from flexmarl.controller.process import main; main()"


async def test_it_serves_jobs_of_its_own_until_it_is_told_to_end(
    world: World, kubeconfig: Path, tmp_path: Path
) -> None:
    environment = {
        "KUBECONFIG": str(kubeconfig),
        "FLEXMARL_NAMESPACES": json.dumps([world.namespace]),
        "FLEXMARL_MANAGED_BY": "example.com/mine",
        "FLEXMARL_IMAGES": json.dumps(IMAGES),
    }
    log = tmp_path / "log"
    async with running(CODE, environment, log) as process:
        others, mine = sound(), sound()
        mine["metadata"]["name"] = "mine"
        for job in (others, mine):
            job["spec"]["store"] = {"url": "redis://store.invalid:6379"}
        mine["spec"]["managedBy"] = "example.com/mine"
        await world.submit(others)
        await world.submit(mine)
        async with asyncio.timeout(120):
            while await world.names("Job") != {"mine-orchestrator"}:
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.2)
            process.terminate()
            assert await process.wait() == 0, log.read_text()
    status = (await world.cluster.call("GET", f"{world.path}/tiny")).get("status")
    assert not status
