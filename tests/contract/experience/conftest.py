"""A real Valkey through the very code that starts it in a job, on a unix socket."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.cluster.api import DIES_WITH_US
from tests.unit.experience.groups import POLICIES

from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.server import register
from flexmarl.experience.store import Store
from flexmarl.runtime.grpc import serving

JOB = """
apiVersion: flexmarl.io/v1alpha1
kind: MARLJob
metadata: {{name: store}}
spec:
  policies:
  - {{name: solver, model: {{uri: "random://llama?hidden=64&layers=2&heads=4"}}}}
  - {{name: verifier, model: {{uri: "random://llama?hidden=64&layers=2&heads=4"}}}}
  agents:
  - {{name: solver, policy: solver}}
  - {{name: verifier, policy: verifier}}
  workflow: {{entrypoint: "team:Workflow"}}
  data: {{uri: "gym://chain_sum"}}
  steps: 1
  store: {{maxMemoryMib: {memory}}}
"""
TOKEN = "job-token"
_uids = itertools.count()


def _any_of(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass
class Server:
    """One embedded store that a test may kill and start again.

    Without a `user` the test may do anything in it, for any number of jobs.
    """

    directory: Path
    memory_mib: int = 256
    user: str = ""
    uid: str = "1"
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"unix://{self.user}:p%22w%20%5C@{self.directory}/store.sock"

    @property
    def log(self) -> Path:
        """What the server could read again."""
        [path] = (self.directory / "appendonlydir").glob("*.incr.aof")
        return path

    def start(self) -> None:
        job = self.directory / "job.yaml"
        job.write_text(JOB.format(memory=self.memory_mib))
        env = os.environ | {
            "FLEXMARL_JOB_FILE": str(job),
            "FLEXMARL_JOB_UID": self.uid,
            "FLEXMARL_STORE_URL": self.url,
        }
        code = "from flexmarl.experience.embedded import main; main()"
        with (self.directory / "store.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*DIES_WITH_US, sys.executable, "-c", code],
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        with self.client() as client:
            for _ in range(1200):
                try:
                    client.ping()
                    return
                except (redis.ConnectionError, redis.BusyLoadingError):
                    time.sleep(0.05)
        raise AssertionError((self.directory / "store.log").read_text())

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """Ends the server; killed, it takes along the child that rewrites its log."""
        assert self.process is not None
        group = self.process.pid
        if sig == signal.SIGKILL:
            os.killpg(group, sig)
        else:
            self.process.send_signal(sig)
        status = self.process.wait(timeout=60)
        for _ in range(1000):
            if not _any_of(group):
                break
            time.sleep(0.01)
        return status

    def lose_memory(self) -> None:
        """Killed, and nothing of its log is left when it starts again."""
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.directory / "appendonlydir")
        self.start()

    @contextmanager
    def client(self) -> Iterator[Any]:
        """A plain client; Any, because its replies are typed as all that might come."""
        client = redis.Redis.from_url(self.url)
        try:
            yield client
        finally:
            client.close()


@contextmanager
def running(memory_mib: int = 256, **fields: str) -> Iterator[Server]:
    """A server of its own; its socket's path stays short whatever the test is called."""
    with tempfile.TemporaryDirectory(prefix="flexmarl-") as directory:
        server = Server(Path(directory), memory_mib, **fields)
        server.start()
        try:
            yield server
        finally:
            if server.process is not None and server.process.poll() is None:
                server.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Shared: tests are kept apart by their job's uid, as jobs are."""
    with running() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def small_server() -> Iterator[Server]:
    with running(memory_mib=8) as server:
        yield server


@pytest.fixture
def uid() -> str:
    return f"default/job/{next(_uids)}"


@pytest.fixture
async def store(server: Server, uid: str) -> AsyncIterator[Store]:
    async with Store(server.url, uid, POLICIES) as store:
        yield store


@pytest.fixture
async def another(server: Server, uid: str) -> AsyncIterator[Store]:
    """A second instance, which did not see what the first one stored."""
    async with Store(server.url, uid, POLICIES) as store:
        yield store


@pytest.fixture
async def client(store: Store) -> AsyncIterator[ExperienceClient]:
    """Through a real channel to a real service."""
    async with (
        serving(register(store), "127.0.0.1:0", token=TOKEN) as address,
        ExperienceClient(address, TOKEN) as client,
    ):
        yield client
