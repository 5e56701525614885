"""A bench that is stopped takes the job with it that it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cluster.api import DIES_WITH_US

pytestmark = pytest.mark.e2e

LONGEST_SECONDS = 300
BENCH = [sys.executable, "-m", "flexmarl.cli", "bench", "pipeline", "--rounds", "1"]


def started_from(marker: str) -> dict[int, str]:
    """Command lines of the processes with this in their environment, by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and marker.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
    return found


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_of_a_bench_outlives_it(tmp_path: Path, sig: signal.Signals) -> None:
    marker = f"BENCH_OF={tmp_path}"
    name, _, value = marker.partition("=")
    bench = subprocess.Popen(
        [*DIES_WITH_US, *BENCH],
        env=os.environ | {name: value},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        until = time.monotonic() + LONGEST_SECONDS
        while not any(
            "flexmarl.local.child engine" in one for one in started_from(marker).values()
        ):
            assert bench.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        bench.send_signal(sig)
        _, errors = bench.communicate(timeout=LONGEST_SECONDS)
        assert bench.returncode == (-sig if sig == signal.SIGKILL else 130)
        assert errors == b""
        until = time.monotonic() + LONGEST_SECONDS
        while (left := started_from(marker)) and time.monotonic() < until:
            time.sleep(0.1)
        assert left == {}
    finally:
        for pid in started_from(marker):
            os.kill(pid, signal.SIGKILL)
        bench.wait()
