"""The files of a MARLJob's run, from the volume that outlives its pods.

Through the orchestrator while it runs, else through a pod that mounts the claim read-only for as
long as this takes; also when the job itself has been deleted and its claim was kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO

from flexmarl.cli.cluster import Cluster
from flexmarl.cli.connection import connected
from flexmarl.cli.console import CommandError, warn
from flexmarl.cli.find import RUNS
from flexmarl.cli.jobs import UNDER_WAY, claim_of, looked_for, phase_of, status_of
from flexmarl.cli.readerpod import MAIN, MOUNT, ready, running
from flexmarl.cli.refusals import Object, RefusalError
from flexmarl.contracts.documents import dump
from flexmarl.controller.names import ORCHESTRATOR, READER, child
from flexmarl.fetch.archive import put

REPORTED = ("job.yaml", "progress.json", "summary.json", "metrics.jsonl", "evals.jsonl",
            "episodes.jsonl")  # fmt: skip
RETURN_SECONDS = 60.0
"""For an orchestrator that is restarted: a reader elsewhere might take the volume from it."""
ENDING_SECONDS = 10.0
"""Until a pod whose processes are gone is known to have ended."""
AGAIN_SECONDS = 1.0
PACK = """
import pathlib, sys, tarfile
claim, run, without, *wanted = sys.argv[1:]
runs = sorted(pathlib.Path(claim).glob(run), key=lambda one: one.stat().st_mtime)
if not runs:
    sys.exit(f"the claim holds no {run}")
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as out:
    out.add(runs[-1], runs[-1].name, recursive=False)
    for pattern in wanted:
        for path in sorted(runs[-1].glob(pattern)):
            if path.is_file() and path.name != without:
                out.add(path, f"{runs[-1].name}/{path.relative_to(runs[-1])}")
"""


@dataclass(frozen=True, slots=True)
class Where:
    """What a command was told of a cluster, and of what reads there."""

    namespace: str | None = None
    context: str | None = None
    image: str | None = None
    claim: str | None = None


@dataclass(slots=True)
class Reader:
    """Reads through a pod; should that end, through one of its own, which lives in `stack`."""

    cluster: Cluster
    job: str
    run: str
    """The run's folder in the claim, as a pattern: without its job, the newest of that name."""
    claim: str
    told: Object
    """How a pod is made that reads the claim; empty where nothing says so."""
    stack: AsyncExitStack
    pod: str = ""
    own: bool = False
    """Whether the pod is not the orchestrator's."""

    async def copy(self, into: Path, *wanted: str, without: str = "") -> Path:
        """Files of the run that match one of these patterns; the folder below `into` with them."""
        command = ["python3", "-c", PACK, MOUNT, self.run, without, *wanted]
        if self.pod:
            try:
                return await self._copy(into, command)
            except CommandError as error:
                if self.own or not await self._over(error):
                    raise
        await self._own_pod()
        return await self._copy(into, command)

    async def _copy(self, into: Path, command: list[str]) -> Path:
        with tempfile.TemporaryFile(dir=into) as spool:
            async for chunk in self.cluster.output(self.pod, MAIN, command):
                spool.write(chunk)
            spool.seek(0)
            try:
                return unpacked(spool, into)
            except tarfile.TarError as error:
                raise CommandError(f"What the pod {self.pod} sent is damaged: {error}") from error

    async def _over(self, error: CommandError) -> bool:
        """Whether it was the orchestrator's end that kept it from answering."""
        if isinstance(error, RefusalError) and error.status in (401, 403):
            return False
        loop = asyncio.get_running_loop()
        end = loop.time() + ENDING_SECONDS
        while True:
            pod = await self.cluster.pod(self.pod)
            if pod is None or not ready(pod):
                return True
            if loop.time() > end:
                return False
            await asyncio.sleep(AGAIN_SECONDS)

    async def _own_pod(self) -> None:
        if "image" not in self.told:
            raise CommandError(
                f"No pod of marljob {self.job} runs, and the claim {self.claim} does not say which "
                "image reads it: name one with python3 by --image, for example FlexMARL's slim one"
            )
        pod = running(self.cluster, self.job, self.claim, self.told)
        self.pod, self.own = await self.stack.enter_async_context(pod), True


def unpacked(spool: IO[bytes], into: Path) -> Path:
    """The folder of a run as PACK sends it: first the folder, then plain files."""
    with tarfile.open(fileobj=spool) as archive:
        members = archive.getmembers()
        if not members or not members[0].isdir() or PurePath(members[0].name).name in ("", ".."):
            raise tarfile.TarError("it begins with no folder")
        folder = into / PurePath(members[0].name).name
        folder.mkdir(exist_ok=True)
        for file in members[1:]:
            put(archive, file, into)
            os.utime(into / file.name, (file.mtime, file.mtime))  # which run is the newest
        return folder


async def copied_run(name: str, where: Where) -> Path:
    """A folder below runs/ with what a report is made of, as it is now."""
    async with reading(name, where) as (reader, job):
        with tempfile.TemporaryDirectory(dir=_made(RUNS), prefix=".") as scratch:
            found = await reader.copy(Path(scratch), *REPORTED)
            root = _made(RUNS / found.name)
            for file in found.iterdir():
                file.replace(root / file.name)
    if job is not None and not (root / "job.yaml").exists():
        plain = {key: job[key] for key in ("apiVersion", "kind", "spec")}
        plain["metadata"] = {key: job["metadata"][key] for key in ("name", "namespace")}
        (root / "job.yaml").write_text(dump(plain))
    return root


@asynccontextmanager
async def reading(name: str, where: Where) -> AsyncIterator[tuple[Reader, Object | None]]:
    """Something that reads the run, and its job unless that was deleted. CommandError."""
    async with connected(where.namespace, where.context) as cluster, AsyncExitStack() as stack:
        job = await cluster.find_job(name)
        if job is not None and where.claim not in (None, claim_of(job)):
            job = None  # an earlier job of this name is meant
        claim = where.claim or (claim_of(job) if job else child(name, "run"))
        kept = await cluster.claim(claim)
        if kept is None:
            if job is None and where.claim is None:
                await _nothing(cluster, name, where)
            about = f"; marljob {name} is {phase_of(job)}" if job else ""
            raise CommandError(f"There is no claim {claim} in namespace {cluster.namespace}{about}")
        if (phase := status_of(kept).get("phase")) != "Bound":
            raise CommandError(f"The claim {claim} is {phase or 'new'}: nothing was written yet")
        run = f"{name}-{job['metadata']['uid'][:8]}" if job else f"{name}-????????"
        told = json.loads(kept["metadata"].get("annotations", {}).get(READER) or "{}")
        if where.image:
            told["image"] = where.image
        pod = await orchestrator(cluster, job) if job else ""
        yield Reader(cluster, name, run, claim, told, stack, pod), job


async def orchestrator(cluster: Cluster, job: Object | None) -> str:
    """The job's pod that can be asked; empty: there is none, and none will be soon."""
    loop = asyncio.get_running_loop()
    end = loop.time() + RETURN_SECONDS
    waits = False
    while job is not None:
        name = job["metadata"]["name"]
        found = [pod for pod in await cluster.pods(name, ORCHESTRATOR) if ready(pod)]
        if found:
            return str(found[-1]["metadata"]["name"])
        if phase_of(job) not in UNDER_WAY or loop.time() > end:
            return ""
        if not waits:
            warn(f"The orchestrator of marljob {name} does not run; it is waited for")
            waits = True
        await asyncio.sleep(AGAIN_SECONDS)
        job = await cluster.find_job(name)
    return ""


async def _nothing(cluster: Cluster, name: str, where: Where) -> None:
    """CommandError: neither the job nor its claim is there."""
    try:
        await looked_for(cluster, name, where.namespace, where.context)
    except CommandError as error:
        hint = "One that was deleted is read from the claim that --claim names"
        raise CommandError(f"{error}. {hint}", error.exit_code) from None


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
