"""A run's files out of a claim: what the pod is, and what it sends."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import kubernetes_validate
import pytest

from flexmarl.cli.cluster import Cluster
from flexmarl.cli.console import CommandError
from flexmarl.cli.reading import MOUNT, REPORTED, Reader, reader_pod


@dataclass
class Here:
    """A cluster whose pods are processes of this machine, with the claim at a folder."""

    claim: Path

    async def output(self, pod: str, container: str, command: list[str]) -> AsyncIterator[bytes]:
        words = [sys.executable, *command[1:]]
        words[words.index(MOUNT)] = str(self.claim)
        piped = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, stdout=piped, stderr=piped)
        written, said = await process.communicate()
        for start in range(0, len(written), 1000):
            yield written[start : start + 1000]
        if process.returncode:
            raise CommandError(said.decode().strip())


def reader(claim: Path, run: str) -> Reader:
    return Reader(cast(Cluster, Here(claim)), "pod", run)


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


async def test_a_run_is_copied_without_what_nobody_asked_for(tmp_path: Path) -> None:
    run = tmp_path / "claim" / "duel-0123abcd"
    write(run, metrics__jsonl="{}\n", progress__json="{}")
    write(run / "checkpoints" / "step-2" / "a", model="w" * 5000, optimizer="m")
    write(tmp_path / "claim" / "duel-other", metrics__jsonl="not this")
    into = tmp_path / "out"
    into.mkdir()
    found = await reader(tmp_path / "claim", run.name).copy(into, *REPORTED)
    assert found == into / run.name
    assert sorted(file.name for file in found.iterdir()) == ["metrics.jsonl", "progress.json"]
    wanted = "checkpoints/step-2/a/*"
    await reader(tmp_path / "claim", run.name).copy(into, wanted, without="optimizer")
    assert [file.name for file in found.glob(wanted)] == ["model"]


async def test_without_its_job_the_newest_run_of_the_name_is_meant(tmp_path: Path) -> None:
    for age, name in enumerate(("duel-00000001", "duel-00000002", "duellist-00000003")):
        write(tmp_path / "claim" / name, progress__json=name)
        os.utime(tmp_path / "claim" / name, (1e9 - age, 1e9 - age))
    found = await reader(tmp_path / "claim", "duel-????????").copy(tmp_path, *REPORTED)
    assert found.name == "duel-00000001"


async def test_a_claim_without_the_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="the claim holds no duel-0"):
        await reader(tmp_path, "duel-0").copy(tmp_path, *REPORTED)


def test_the_pod_that_reads_is_restricted_and_cannot_write() -> None:
    told: dict[str, Any] = {"image": "slim:1", "imagePullSecrets": [{"name": "registry"}]}
    pod = reader_pod("duel-reader-1", "duel-run", told)
    kubernetes_validate.validate(pod, "1.29", strict=True)
    (container,) = pod["spec"]["containers"]
    assert container["volumeMounts"] == [{"name": "run", "mountPath": MOUNT, "readOnly": True}]
    assert "flexmarl.io/job" not in pod["metadata"]["labels"]  # it is nobody's to call or to count
