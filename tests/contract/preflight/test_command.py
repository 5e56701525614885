"""Preflight as a pod runs it: a process with its plan, Secrets in its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.fetch.servers import Hub, serving_git, upload
from tests.ports import free_port

from flexmarl.contracts.preparation import Kind, Preparation, Report, Source, State
from flexmarl.controller.preparation import how_far
from flexmarl.fetch.sources import Part, fetched

MODEL = "hf://org/model@v1"


def run(tmp_path: Path, plan: Preparation, **environment: str) -> tuple[int, Report]:
    """Its exit code and what it said."""
    message = tmp_path / "termination-log"
    kept = {key: os.environ[key] for key in ("PATH", "XDG_CACHE_HOME") if key in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "flexmarl.preflight", plan.text(), f"--message={message}"],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    report = Report.read(message.read_text())
    assert report is not None, done.stderr
    return done.returncode, report


def hub_variables(hub: Hub, prefix: str = "SECRET0_") -> dict[str, str]:
    return {f"{prefix}HF_ENDPOINT": hub.url, f"{prefix}HF_TOKEN": "right"}


def model(variables: str = "SECRET0_") -> Source:
    return Source(uri=MODEL, part="model", variables=variables)


def test_its_log_says_how_far_it_is(tmp_path: Path, cache: Path, hub: Hub) -> None:
    hub.pause = 0.02
    code = (
        "from flexmarl.fetch import download; download.REPORT_SECONDS = 0.05; "
        "from flexmarl.preflight.__main__ import main; main()"
    )
    environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(cache.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code, Preparation(sources=[model()], job="uid").text()],
        env=environment | hub_variables(hub),
        capture_output=True,
        timeout=120,
        check=True,
    )
    first = next(line for line in done.stderr.splitlines() if b'"fetching"' in line)
    assert f"0 of 0 MiB of {MODEL}, " in how_far(first)


def test_each_source_has_the_secret_that_its_field_names(
    tmp_path: Path, cache: Path, hub: Hub, s3: str
) -> None:
    hub.token = "right"
    upload(s3, "preflight", {"tasks.jsonl": b"{}\n"})
    data = Source(uri="s3://preflight/tasks.jsonl", variables="SECRET1_")
    keys = {
        "SECRET1_AWS_ENDPOINT_URL": s3,
        "SECRET1_AWS_ACCESS_KEY_ID": "key",
        "SECRET1_AWS_SECRET_ACCESS_KEY": "secret",
        "SECRET1_AWS_REGION": "us-east-1",
        "SECRET1_HF_TOKEN": "wrong",
    }
    plan = Preparation(sources=[model(), data], writable=[str(cache)], job="uid")
    code, report = run(tmp_path, plan, **hub_variables(hub), **keys)
    assert (code, report.findings, report.sources) == (0, [], 2)
    assert report.bytes > 700_000
    folder = fetched(MODEL, Part.MODEL)
    assert folder is not None
    assert (folder / "config.json").exists()
    tasks = fetched("s3://preflight/tasks.jsonl")
    assert tasks is not None
    assert (tasks / "tasks.jsonl").read_bytes() == b"{}\n"
    again = run(tmp_path, plan)[1]  # no other pod of the job needs network or keys
    assert (again.findings, again.bytes) == ([], 0)


@pytest.mark.parametrize(
    ("token", "revision", "reason"),
    [("wrong", "v1", "AccessDenied"), ("right", "v9", "SourceNotFound")],
)
@pytest.mark.usefixtures("cache")
def test_what_no_second_try_can_mend_is_hopeless(
    tmp_path: Path, hub: Hub, token: str, revision: str, reason: str
) -> None:
    hub.token = "right"
    source = Source(uri=f"hf://org/model@{revision}", part="model", variables="SECRET0_")
    given = hub_variables(hub) | {"SECRET0_HF_TOKEN": token}
    code, report = run(tmp_path, Preparation(sources=[source]), **given)
    assert code == 3
    assert [one.reason for one in report.findings] == [reason]
    assert report.findings[0].fetching


def test_what_could_not_be_checked_is_a_warning(tmp_path: Path, cache: Path, hub: Hub) -> None:
    plan = Preparation(sources=[model()])
    assert run(tmp_path, plan, **hub_variables(hub))[0] == 0
    away = {"SECRET0_HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    code, report = run(tmp_path, plan, **away)
    assert (code, [one.reason for one in report.findings]) == (0, ["SourceUnchecked"])
    assert report.findings[0].kind is Kind.WARNING


@pytest.mark.usefixtures("cache")
def test_a_hub_that_is_away_may_come_back(tmp_path: Path) -> None:
    away = {"SECRET0_HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    code, report = run(tmp_path, Preparation(sources=[model()]), **away)
    assert code == 75
    assert [one.reason for one in report.findings] == ["SourceUnreachable"]


def test_a_repository_lies_beside_the_files_of_the_job(tmp_path: Path, cache: Path) -> None:
    root = tmp_path / "repositories"
    work = root / "team.git"
    work.mkdir(parents=True)
    (work / "own.py").write_text("x = 1\n")
    name = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q", "-b", "main"), ("add", "."), (*name, "commit", "-qm", "x")):
        subprocess.run(["git", *command], cwd=work, check=True)
    (tmp_path / "map").mkdir()
    (tmp_path / "map/tasks.jsonl").write_text("{}\n")
    into = tmp_path / "files"
    with serving_git(root, password="right") as url:
        plan = Preparation(
            files=str(tmp_path / "map"),
            code=Source(uri=f"git+{url}/team.git@main", variables="SECRET0_"),
            into=str(into),
            writable=[str(into)],
        )
        (tmp_path / "one").mkdir()
        (tmp_path / "two").mkdir()
        basic = {"SECRET0_username": "me", "SECRET0_password": "right"}
        code, report = run(tmp_path, plan, **basic, TMPDIR=str(tmp_path / "one"))
        assert (code, report.findings) == (0, [])
        assert (into / "own.py").read_text() == "x = 1\n"
        assert (into / "tasks.jsonl").exists()
        assert not cache.exists()  # a branch is read anew by each pod
        wrong = basic | {"SECRET0_password": "wrong", "TMPDIR": str(tmp_path / "two")}
        code, report = run(tmp_path, plan, **wrong)
        assert (code, report.findings[0].reason) == (3, "AccessDenied")


def test_shared_memory_is_compared_with_what_was_fetched(
    tmp_path: Path, cache: Path, hub: Hub
) -> None:
    head = json.dumps({"w": {"dtype": "F32", "shape": [1 << 20, 1 << 20]}}).encode()
    hub.files = {"model.safetensors": len(head).to_bytes(8, "little") + head}
    hub.lfs = frozenset()
    state = State(policy="solver", parameter_bytes=12, uri=MODEL)
    plan = Preparation(sources=[model()], states=[state], shm=str(tmp_path))
    code, report = run(tmp_path, plan, **hub_variables(hub))
    assert (code, [one.reason for one in report.findings]) == (3, ["SharedMemoryTooSmall"])
    assert "25165824Mi" in report.findings[0].message


def test_without_anything_to_fetch_no_library_is_loaded() -> None:
    """Every pod of every job waits for this process."""
    code = (
        "import sys; from flexmarl.preflight.running import run; run('{\"writable\": []}'); "
        "print(sorted({'pydantic', 'typer', 'httpx', 'structlog', 'grpc'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_the_command_line_has_it_as_well(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flexmarl.cli", "preflight", Preparation().text()]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
    gone = Preparation(mounted=["pvc://none/x"]).text()
    assert subprocess.run([*command[:-1], gone], timeout=60, check=False).returncode == 3
