"""The store of a cluster: a real Valkey on TCP, started as its pod starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from tests.cluster.api import DIES_WITH_US
from tests.ports import free_port

from flexmarl.experience.acl import acl_rules

ADMIN = "flexmarl:s%20cret"


@contextmanager
def serving(folder: Path, port: int, **env: str) -> Iterator[subprocess.Popen[str]]:
    code = "from flexmarl.experience.embedded import main; main()"
    command = [*DIES_WITH_US, sys.executable, "-c", code]
    env = {
        "FLEXMARL_STORE_URL": f"redis://{ADMIN}@elsewhere:{port}/0",
        "FLEXMARL_STORE_DIR": str(folder),
        **env,
    }
    process = subprocess.Popen(command, env=os.environ | env, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def client(port: int, user: str) -> redis.Redis:
    return redis.Redis.from_url(f"redis://{user}@127.0.0.1:{port}")


def wait_for(process: subprocess.Popen[str], port: int) -> None:
    with client(port, ADMIN) as admin:
        while process.poll() is None:
            try:
                admin.ping()
                return
            except (redis.ConnectionError, redis.BusyLoadingError):
                time.sleep(0.05)
    raise AssertionError(process.communicate()[1])


def test_jobs_keep_users_and_keys_over_a_killed_server(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, port) as server, client(port, ADMIN) as admin:
        wait_for(server, port)
        admin.execute_command(
            "ACL", "SETUSER", "job-1", "reset", "on", ">word", *acl_rules("a/b/c")
        )
        admin.execute_command("ACL", "SAVE")
        with client(port, "job-1:word") as job:
            job.set("{a/b/c}:x", "1")
        server.send_signal(signal.SIGKILL)
    with serving(tmp_path, port) as server, client(port, "job-1:word") as job:
        wait_for(server, port)
        assert job.get("{a/b/c}:x") == b"1"
        with pytest.raises(redis.exceptions.NoPermissionError):
            job.get("{a/b/d}:x")


def test_nobody_enters_without_a_password(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, port) as server:
        wait_for(server, port)
        with redis.Redis(port=port) as anyone, pytest.raises(redis.AuthenticationError):
            anyone.ping()
        with client(port, "flexmarl:wrong") as other, pytest.raises(redis.AuthenticationError):
            other.ping()


def test_a_wrong_environment_is_said_by_its_names(tmp_path: Path) -> None:
    with serving(tmp_path, 1, FLEXMARL_STORE_FSYNC="never") as server:
        _, words = server.communicate(timeout=60)
    assert server.returncode == 3
    assert "FLEXMARL_STORE_FSYNC: " in words
