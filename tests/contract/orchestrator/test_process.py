"""The exit code of the process is the outcome of the job."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import yaml
from tests.contract.experience.conftest import Server
from tests.contract.orchestrator.conftest import Team, team
from tests.unit.orchestrator.jobs import make_job

from flexmarl.runtime.grpc import wait_ready


async def start(around: Team, listen: str) -> asyncio.subprocess.Process:
    settings = around.settings
    job = around.job.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    job |= {"apiVersion": around.job.api_version, "kind": around.job.kind}
    await asyncio.to_thread(settings.job_file.write_text, yaml.safe_dump(job))
    lists = ("workers", "engines", "trainers")
    env = {
        f"FLEXMARL_{name.upper()}": str(value)
        for name, value in settings.model_dump(mode="json").items()
        if value not in ("", [], {}, None) and name not in lists
    }
    env |= {
        f"FLEXMARL_{name.upper()}": settings.model_dump_json(include={name}).split(":", 1)[1][:-1]
        for name in lists
    }
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from flexmarl.orchestrator.process import main; main()",
        env=os.environ | env | {"FLEXMARL_LISTEN": listen},
        stderr=asyncio.subprocess.PIPE,
    )


async def outcome(process: asyncio.subprocess.Process) -> tuple[int | None, list[str]]:
    """Exit code and lines of stderr."""
    async with asyncio.timeout(90):
        _, said = await process.communicate()
    return process.returncode, said.decode().splitlines()


async def test_a_complete_job_is_0(tmp_path: Path, store_server: Server) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        code, said = await outcome(await start(around, "127.0.0.1:0"))
        assert code == 0, said
        around.assert_trained_as_if_nothing_had_happened()


async def test_a_job_that_cannot_succeed_is_3_and_says_why_in_its_last_line(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        (tmp_path / "tasks.jsonl").write_text('{"question": 1}\n{"question": \n')
        code, said = await outcome(await start(around, "127.0.0.1:0"))
        assert code == 3
        assert said[-1].startswith("spec.data.uri: ")
        assert "line 2" in said[-1]
        assert around.json("progress.json")["phase"] == "Failed"
        assert not around.requests


async def test_a_job_that_was_told_to_stop_is_neither_complete_nor_failed(
    tmp_path: Path, store_server: Server
) -> None:
    async with team(make_job(), tmp_path, store_server) as around:
        around.workers[0].seconds = 3600
        playing = asyncio.Event()
        around.workers[0].plays = lambda request: playing.set()
        address = f"unix://{tmp_path}/o.sock"
        process = await start(around, address)
        await wait_ready(address, 60)
        await asyncio.wait_for(playing.wait(), 60)
        process.send_signal(signal.SIGTERM)
        code, said = await outcome(process)
        assert code == 143, said
        assert around.json("progress.json")["phase"] in ("Starting", "Running")
