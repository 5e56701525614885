"""`flexmarl` against a real API server; whatever would happen on nodes, the test says."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.contract.cli.kubelet import Kubelet, kubelet
from tests.contract.controller.conftest import PAUSE, World, world
from typer.testing import CliRunner

from flexmarl.cli.app import app

__all__ = ["world"]


class Said(NamedTuple):
    code: int
    out: str
    err: str


@dataclass
class Terminal:
    """Where commands are typed: in a thread of this process, which has imported what they need."""

    folder: Path
    kubeconfig: Path
    namespace: str

    @property
    def environment(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.kubeconfig)}

    async def __call__(self, *arguments: str) -> Said:
        words = [*arguments, "-n", self.namespace]
        found = await asyncio.to_thread(CliRunner().invoke, app, words, env=self.environment)
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        return Said(found.exit_code, found.stdout, found.stderr)

    async def start(self, *arguments: str, stdout: int) -> asyncio.subprocess.Process:
        """A command by itself."""
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flexmarl.cli", *arguments, "-n", self.namespace),
            cwd=self.folder,
            env={**os.environ, **self.environment},
            stdout=stdout,
            stderr=asyncio.subprocess.PIPE,
        )


@pytest.fixture
def flexmarl(
    world: World, kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Terminal:
    monkeypatch.chdir(tmp_path)
    return Terminal(tmp_path, kubeconfig, world.namespace)


@pytest.fixture
async def node(world: World, kubeconfig: Path, tmp_path: Path) -> AsyncIterator[Kubelet]:
    """With the account that pods of the namespace have."""
    accounts = f"/api/v1/namespaces/{world.namespace}/serviceaccounts"
    while not (await world.cluster.call("GET", accounts))["items"]:  # noqa: ASYNC110 - it comes soon
        await asyncio.sleep(PAUSE)
    async with kubelet(
        world.cluster, world.namespace, kubeconfig.parent, tmp_path / "claim"
    ) as found:
        yield found
