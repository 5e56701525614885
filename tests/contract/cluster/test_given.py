"""The tests' own API server, and what `make e2e` does to a cluster that others use: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import e2e
from tests.cluster.api import installed
from tests.cluster.layout import REPO, layout
from tests.cluster.programs import MissingError

SAYS = "import os, time; print(os.environ['KUBECONFIG'], flush=True); time.sleep(600)"


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """`python -m tests.cluster api`, and the kubeconfig that it gives its command."""
    if not installed(layout()):
        pytest.skip("no API server: python -m tests.cluster install --api")
    command = [sys.executable, "-m", "tests.cluster", "api", sys.executable, "-c", SAYS]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def below(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(each) for each in text.split()]


def runs(process: int) -> bool:
    """One that has ended has no command line, also while nobody has asked for its exit code."""
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGKILL])
def test_an_api_server_and_its_command_end_with_who_started_them(
    server: tuple[subprocess.Popen[str], Path], ends: signal.Signals
) -> None:
    process, _ = server
    children = below(process.pid)
    assert len(children) == 4
    process.send_signal(ends)
    process.wait(60)
    end = time.monotonic() + 60
    while any(map(runs, children)):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_cluster_that_serves_jobs_is_refused_before_anything_is_built(
    server: tuple[subprocess.Popen[str], Path], monkeypatch: pytest.MonkeyPatch, repo: Path
) -> None:
    _, kubeconfig = server
    where = layout()
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("PATH", f"{where.programs}:{os.environ['PATH']}")
    monkeypatch.delenv("REGISTRY", raising=False)
    with pytest.raises(MissingError, match="set REGISTRY too"):
        e2e.run(where, [], full=False, gang=True)
    definition = repo / "charts/flexmarl/files/marljobs.yaml"
    subprocess.run(["kubectl", "create", "-f", definition], check=True, capture_output=True)
    with pytest.raises(MissingError, match="in use there"):
        e2e.run(where, [], full=False, gang=True)
