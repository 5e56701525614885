"""What commands say about a cluster: its refusals, a job's status, and when it is meant at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.unit.cli.runs import write_run

from flexmarl.cli.cluster import parsed, refusal
from flexmarl.cli.commands.target import local_run
from flexmarl.cli.console import FAILED, INVALID, CommandError
from flexmarl.cli.jobview import overview


@pytest.mark.parametrize(
    ("status", "told", "words", "exit_code"),
    [
        (401, {"message": "Unauthorized"}, "renew the login", FAILED),
        (403, {"message": 'cannot patch resource "marljobs"'}, "You may not .* Ask for", FAILED),
        (404, {"details": {"kind": "namespaces", "name": "x"}}, "create namespace team", INVALID),
        (404, {"message": "404 page not found"}, "install FlexMARL", FAILED),
        (409, {"message": 'conflict with "other": .spec.steps'}, "steps. Take .*--force", INVALID),
        (
            422,
            {"details": {"causes": [{"field": "spec.seed", "message": "cannot be changed"}]}},
            "spec.seed: cannot be changed",
            INVALID,
        ),
        (
            400,
            {"message": 'patch: strict decoding error: unknown field "spec.stesp"'},
            'refuses the job: unknown field "spec.stesp"',
            INVALID,
        ),
        (500, {}, "answers 500: no reason given", FAILED),
        (503, parsed(b"upstream is away"), "answers 503: upstream is away", FAILED),
    ],
)
def test_a_refusal_says_what_to_do(
    status: int, told: dict[str, Any], words: str, exit_code: int
) -> None:
    error = refusal(status, told, "team")
    assert error.exit_code == exit_code
    with pytest.raises(CommandError, match=words):
        raise error


def shown(status: dict[str, Any]) -> str:
    job = {
        "metadata": {"name": "duel", "namespace": "team"},
        "spec": {"steps": 9, "managedBy": "flexmarl.io/controller"},
        "status": status,
    }
    out = io.StringIO()
    Console(file=out, width=100, highlight=False).print(overview(job))
    return out.getvalue()


def test_a_status_says_what_is_wrong_and_leaves_out_what_is_not() -> None:
    text = shown(
        {
            "phase": "Running",
            "progress": "3/9",
            "policies": [{"name": "solver", "version": 3, "engines": 2}],
            "pools": [{"name": "small", "ready": 1, "wanted": 2, "max": 4}],
            "restarts": {"engine": 1, "trainer": 0},
            "conditions": [
                {
                    "type": "ModelsFetched",
                    "status": "False",
                    "reason": "DiskFull",
                    "message": "give the cache a larger volume",
                },
                {"type": "Ready", "status": "True", "message": "all pods are there"},
            ],
        }
    )
    assert "duel   team   Running   step 3/9" in text
    assert "ModelsFetched DiskFull: give the cache a larger volume" in text
    assert "all pods are there" not in text
    assert "restarts: engine 1\n" in text
    assert [line.split() for line in text.splitlines()[-4:]] == [
        ["policies", "version", "engines"],
        ["solver", "3", "2"],
        ["pools", "ready", "wanted", "max"],
        ["small", "1", "2", "4"],
    ]


def test_a_failure_is_told_after_the_pods_are_gone() -> None:
    text = shown(
        {
            "phase": "Failed",
            "reason": "RestartsUsedUp",
            "failure": {"pod": "duel-engine-0", "exitCode": 3, "message": "out of memory"},
        }
    )
    assert "Failed   step 0/9" in text
    assert "duel-engine-0 failed with exit code 3: out of memory" in text


def test_a_job_that_no_controller_has_seen_says_so() -> None:
    assert "is FlexMARL's running?" in shown({})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    return tmp_path


def test_a_run_of_this_machine_comes_first(folder: Path) -> None:
    write_run(folder / "runs" / "duel")
    (folder / "kubeconfig").touch()
    assert local_run("duel", None, None) == Path("runs/duel")
    assert local_run(None, None, None) == Path("runs/duel")
    assert local_run("duel", "team", None) is None
    assert local_run("duel", None, "prod") is None


def test_other_names_are_looked_for_on_the_cluster_if_there_is_one(folder: Path) -> None:
    with pytest.raises(CommandError, match='no run "duel"'):
        local_run("duel", None, None)
    (folder / "kubeconfig").touch()
    assert local_run("duel", None, None) is None


def test_a_cluster_is_asked_for_a_job_by_its_name(folder: Path) -> None:
    with pytest.raises(CommandError, match="Name the MARLJob"):
        local_run(None, "team", None)
