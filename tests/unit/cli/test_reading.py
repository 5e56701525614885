"""A run's files out of a claim: what the pod is, and what it sends."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import kubernetes_validate
import pytest
from tests.unit.controller.seen import INSTALLATION, document, subject

from flexmarl.cli import readerpod, reading
from flexmarl.cli.cluster import Cluster
from flexmarl.cli.console import CommandError
from flexmarl.cli.readerpod import MOUNT
from flexmarl.cli.reading import REPORTED, Reader
from flexmarl.cli.refusals import RefusalError
from flexmarl.controller.names import READER
from flexmarl.controller.render import access
from flexmarl.controller.render.parts import USER


@dataclass
class Here:
    """A cluster whose pods are processes of this machine, with the claim at a folder."""

    claim: Path
    namespace: str = "team"
    there: dict[str, dict[str, Any]] = field(default_factory=dict)
    refuses: dict[str, CommandError] = field(default_factory=dict)
    """By pod: why it runs no command."""
    made: list[str] = field(default_factory=list)

    async def output(self, pod: str, container: str, command: list[str]) -> AsyncIterator[bytes]:
        if pod in self.refuses:
            yield b"half"
            raise self.refuses[pod]
        words = [sys.executable, *command[1:]]
        words[words.index(MOUNT)] = str(self.claim)
        piped = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, stdout=piped, stderr=piped)
        written, said = await process.communicate()
        for start in range(0, len(written), 1000):
            yield written[start : start + 1000]
        if process.returncode:
            raise CommandError(said.decode().strip())

    async def pod(self, name: str) -> dict[str, Any] | None:
        return self.there.get(name)

    async def create_pod(self, pod: dict[str, Any]) -> None:
        self.made.append(pod["metadata"]["name"])
        self.there[pod["metadata"]["name"]] = RUNNING

    async def delete_pod(self, name: str) -> None:
        del self.there[name]


RUNNING: dict[str, Any] = {
    "metadata": {},
    "status": {"phase": "Running", "containerStatuses": [{"ready": True}]},
}
TOLD = {"image": "slim:1"}


def reader(here: Here | Path, run: str, told: dict[str, Any] | None = None) -> Reader:
    here = here if isinstance(here, Here) else Here(here, there={"pod": RUNNING})
    stack = AsyncExitStack()
    return Reader(cast(Cluster, here), "duel", run, "duel-run", told or {}, stack, "pod")


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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ENDING_SECONDS", 0.1)
    monkeypatch.setattr(reading, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(readerpod, "AGAIN_SECONDS", 0.01)


@pytest.mark.usefixtures("quick")
async def test_when_the_orchestrator_ends_the_claim_is_read_instead(tmp_path: Path) -> None:
    write(tmp_path / "claim" / "duel-1", progress__json="{}")
    here = Here(tmp_path / "claim", refuses={"pod": RefusalError("there is no pod", 404)})
    one = reader(here, "duel-1", TOLD)
    async with one.stack:
        for _ in range(2):
            found = await one.copy(tmp_path, *REPORTED)
            assert [file.name for file in found.iterdir()] == ["progress.json"]
    assert len(here.made) == 1
    assert not here.there


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("error", [RefusalError("you may not", 403), CommandError("no such run")])
async def test_an_orchestrator_that_runs_is_not_replaced(
    tmp_path: Path, error: CommandError
) -> None:
    here = Here(tmp_path, there={"pod": RUNNING}, refuses={"pod": error})
    with pytest.raises(CommandError, match=str(error)):
        await reader(here, "duel-1", TOLD).copy(tmp_path, *REPORTED)
    assert not here.made


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../evil", tarfile.REGTYPE), ("/evil", tarfile.REGTYPE), ("duel/evil", tarfile.SYMTYPE)],
)
def test_what_a_pod_sends_stays_in_its_folder(tmp_path: Path, name: str, kind: bytes) -> None:
    sent = io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w") as archive:
        for each, how in (("duel", tarfile.DIRTYPE), (name, kind)):
            entry = tarfile.TarInfo(each)
            entry.type, entry.linkname = how, "/etc/passwd"
            archive.addfile(entry)
    sent.seek(0)
    with pytest.raises(tarfile.TarError):
        reading.unpacked(sent, tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["duel"]


async def test_a_copied_run_is_as_old_as_it_is(tmp_path: Path) -> None:
    run = tmp_path / "claim" / "duel-1"
    write(run, progress__json="{}")
    os.utime(run / "progress.json", (1e9, 1e9))
    found = await reader(tmp_path / "claim", "duel-1").copy(tmp_path, *REPORTED)
    assert (found / "progress.json").stat().st_mtime == 1e9


def pending(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "duel-reader-1"}, "status": {"phase": "Pending", **status}}


def held(reason: str, message: str) -> dict[str, Any]:
    return {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}


TAINTS = {"type": "PodScheduled", "reason": "Unschedulable", "message": "3 nodes have taints"}
PASSING = [
    pending(conditions=[TAINTS]),
    pending(containerStatuses=[held("ErrImagePull", "registry is away")]),
    pending(containerStatuses=[held("ImagePullBackOff", "registry is away")]),
]


class Waits(Here):
    """A cluster whose pods are long in coming."""

    states: Iterator[dict[str, Any]]

    async def pod(self, name: str) -> dict[str, Any] | None:
        return next(self.states, self.there.get(name))


@pytest.mark.usefixtures("quick")
async def test_what_keeps_a_reader_from_starting_may_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Waits(tmp_path)
    here.states = iter([*PASSING, *PASSING[2:]])
    async with readerpod.running(cast(Cluster, here), "duel", "duel-run", TOLD) as name:
        assert here.made == [name]
    assert not here.there
    said = capsys.readouterr().err.splitlines()
    assert ["3 nodes have taints" in line for line in said] == [True, False, False]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("state", "words"),
    [
        (PASSING[0], "did not start within .*: no node takes it: 3 nodes have taints"),
        (PASSING[2], "did not start within .*: registry is away.*get events"),
        (pending(), r"did not start within \S+ s\. See"),
        (
            {**pending(), "status": {"phase": "Failed", "message": "evicted"}},
            "ended: .*evicted",
        ),
    ],
)
async def test_a_reader_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(readerpod, "START_SECONDS", 0.1)
    here = Waits(tmp_path)
    here.states = itertools.repeat(state)
    with pytest.raises(CommandError, match=words):
        async with readerpod.running(cast(Cluster, here), "duel", "duel-run", TOLD):
            pass
    assert not here.there


async def test_a_claim_without_the_run_says_so(tmp_path: Path, quick: None) -> None:
    with pytest.raises(CommandError, match="the claim holds no duel-0"):
        await reader(tmp_path, "duel-0").copy(tmp_path, *REPORTED)


class Returns(Here):
    """A cluster whose orchestrator is restarted."""

    looks = 0
    phase = "Running"

    async def find_job(self, name: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "status": {"phase": self.phase}}

    async def pods(self, job: str, role: str) -> list[dict[str, Any]]:
        self.looks += 1
        return [{**RUNNING, "metadata": {"name": "new"}}] if self.looks > 2 else [pending()]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("phase", "found"), [("Running", "new"), ("Complete", ""), ("Suspended", "")]
)
async def test_an_orchestrator_that_comes_back_is_waited_for(
    tmp_path: Path, phase: str, found: str
) -> None:
    here = Returns(tmp_path)
    here.phase = phase
    job = await here.find_job("duel")
    assert await reading.orchestrator(cast(Cluster, here), job) == found


def test_the_pod_that_reads_is_restricted_and_cannot_write() -> None:
    told: dict[str, Any] = {"image": "slim:1", "imagePullSecrets": [{"name": "registry"}]}
    pod = readerpod.manifest("duel-reader-1", "duel-run", told)
    kubernetes_validate.validate(pod, "1.29", strict=True)
    (container,) = pod["spec"]["containers"]
    assert container["volumeMounts"] == [{"name": "run", "mountPath": MOUNT, "readOnly": True}]
    assert set(container["resources"]["limits"]) == set(container["resources"]["requests"])
    assert "flexmarl.io/job" not in pod["metadata"]["labels"]  # it is nobody's to call or to count


@pytest.mark.parametrize("claim", [{}, {"name": "mine"}])
def test_a_reader_may_run_where_the_orchestrator_may(claim: dict[str, str]) -> None:
    where: dict[str, Any] = {
        "nodeSelector": {"disk": "here"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "imagePullSecrets": [{"name": "mine"}],
    }
    own = {"securityContext": {"runAsUser": 7}, "containers": [{"name": "main", "image": "own:1"}]}
    roles = {"orchestrator": {"template": {"spec": {**where, **own}}}}
    job = subject(document(checkpoint={"claim": claim}, roles=roles))
    (made,) = access.claim(job, INSTALLATION)
    told = json.loads(made["metadata"]["annotations"][READER])
    spec = readerpod.manifest("duel-reader-1", "duel-run", told)["spec"]
    assert {key: spec[key] for key in where} == where
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]) == (
        7,
        USER,
    )
    assert spec["containers"][0]["image"] == "own:1"
    assert ("spec" in made, made["metadata"]["name"]) == (not claim, claim.get("name", "team-run"))
