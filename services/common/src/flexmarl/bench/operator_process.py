"""A controller of this installation as a process of its own, and what it says of itself."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from flexmarl.bench.kube import until
from flexmarl.bench.scale import usage
from flexmarl.runtime.errors import JobFailedError

MANAGED_BY = "flexmarl.io/bench"
START_SECONDS = 180.0
Times = dict[float, float]
"""A histogram: seconds -> how many took no longer."""


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    metrics: str

    async def looks(self) -> Times:
        """Looks at jobs so far."""
        return await self._times("flexmarl_controller_reconcile_seconds")

    async def reactions(self) -> Times:
        """The same from when a job was to be looked at."""
        return await self._times("flexmarl_controller_reaction_seconds")

    async def _times(self, family: str) -> Times:
        text = await asyncio.to_thread(_read, self.metrics)
        return {
            float(sample.labels["le"]): sample.value
            for each in text_string_to_metric_families(text)
            if each.name == family
            for sample in each.samples
            if sample.name.endswith("_bucket")
        }

    @property
    def spent(self) -> float:
        """Seconds of processor time so far."""
        return usage(self.pid)[0]

    @property
    def peak_mib(self) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def quantile(cumulative: Mapping[float, float], share: float) -> float:
    """Of a histogram, upper bound -> how many are not above; linear inside a bucket."""
    bounds = sorted(cumulative)
    wanted, below, low = share * cumulative[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        count = cumulative[bound]
        if count >= wanted and count > below:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (wanted - below) / (count - below)
        below, low = count, bound
    return low


@asynccontextmanager
async def store(namespace: str) -> AsyncIterator[Mapping[str, str]]:
    """What controllers of this namespace read that use it."""
    url = f"redis://bench:{secrets.token_hex(8)}@127.0.0.1:{_free_port()}"
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as directory:
        image = "registry.invalid/flexmarl"  # no node ever pulls it
        environment = {
            "FLEXMARL_STORE_URL": url,
            "FLEXMARL_STORE_DIR": directory,
            "FLEXMARL_NAMESPACES": json.dumps([namespace]),
            "FLEXMARL_MANAGED_BY": MANAGED_BY,
            "FLEXMARL_IMAGES": json.dumps(dict.fromkeys(("slim", "trainer", "vllm"), image)),
            "FLEXMARL_LOG_FORMAT": "json",
        }
        async with _serving("store", environment):
            yield environment


@asynccontextmanager
async def controller(environment: Mapping[str, str]) -> AsyncIterator[Process]:
    """One of this installation."""
    port = _free_port()
    async with _serving("controller", {**environment, "FLEXMARL_METRICS_PORT": str(port)}) as pid:
        found = Process(pid, f"http://127.0.0.1:{port}/metrics")

        async def answers() -> bool:
            try:
                return bool(await found.looks())
            except OSError:
                return False

        await until(answers, START_SECONDS)
        yield found


@asynccontextmanager
async def _serving(name: str, environment: Mapping[str, str]) -> AsyncIterator[int]:
    directory = Path(environment["FLEXMARL_STORE_DIR"])
    with (directory / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flexmarl.cli", "serve", name),
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
        )
    try:
        yield process.pid
        if process.returncode is not None:
            said = (directory / f"{name}.log").read_text(errors="replace")
            raise JobFailedError(f"{name} ended: {said[-2000:]}")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        found: bytes = response.read()
    return found.decode()


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port
