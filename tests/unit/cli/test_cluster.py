"""What commands say about a cluster: its refusals, a job's status, and when it is meant at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.unit.cli.runs import write_run
from tests.unit.controller.seen import a_pod, document, seen

from flexmarl.cli.commands.target import local_run
from flexmarl.cli.console import FAILED, INVALID, CommandError
from flexmarl.cli.jobview import overview
from flexmarl.cli.refusals import Doing, parsed, refusal
from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.preparation import Found, Kind, Report
from flexmarl.controller.findings import find
from flexmarl.controller.observed import JobState, Observed
from flexmarl.controller.phase import Phase
from flexmarl.controller.status import next_status

APPLY = Doing("patch", "marljobs", "duel")
READ = Doing("create", "pods", "duel-reader-1")
EXEC = Doing("create", "pods/exec", "duel-orchestrator-x")
LOG = Doing("get", "pods/log", "duel-engine-0")
QUOTA = 'pods "duel-reader-1" is forbidden: failed quota: few: must specify limits.cpu for: main'
PROFILE = 'pods "duel-reader-1" is forbidden: violates PodSecurity "restricted:latest": seccomp'
WEBHOOK = 'admission webhook "images.example" denied the request: only signed images'


@pytest.mark.parametrize(
    ("doing", "status", "told", "words", "exit_code"),
    [
        (APPLY, 401, {"message": "Unauthorized"}, "renew the login", FAILED),
        (
            APPLY,
            403,
            {"message": 'User "eve" cannot patch resource "marljobs" in API group'},
            "You may not .* Ask for a role that may patch marljobs.flexmarl.io there",
            FAILED,
        ),
        (APPLY, 403, {"message": WEBHOOK}, "refuses the job duel: admission.* images$", FAILED),
        (
            APPLY,
            404,
            {"details": {"kind": "namespaces", "name": "x"}},
            "create namespace team",
            INVALID,
        ),
        (APPLY, 404, {"message": "404 page not found"}, "install FlexMARL", FAILED),
        (APPLY, 404, {"details": {"name": "duel"}}, "There is no job duel any more", FAILED),
        (
            APPLY,
            409,
            {"message": 'conflict with "other": .spec.steps'},
            "steps. Take .*--force",
            INVALID,
        ),
        (
            APPLY,
            422,
            {"details": {"causes": [{"field": "spec.seed", "message": "cannot be changed"}]}},
            "refuses the job:\n  spec.seed: cannot be changed",
            INVALID,
        ),
        (
            APPLY,
            400,
            {"message": 'patch: strict decoding error: unknown field "spec.stesp"'},
            'refuses the job: unknown field "spec.stesp"',
            INVALID,
        ),
        (APPLY, 500, {}, "answers 500: no reason given", FAILED),
        (APPLY, 503, parsed(b"upstream is away"), "answers 503: upstream is away", FAILED),
        (EXEC, 404, {}, "There is no pod duel-orchestrator-x any more", FAILED),
        (EXEC, 403, {}, "Ask for a role that may create pods/exec there", FAILED),
        (EXEC, 500, {}, "answers 500 about the pod duel-orchestrator-x", FAILED),
        (READ, 403, {"message": QUOTA}, "few.*Raise that quota of namespace team", FAILED),
        (READ, 403, {"message": PROFILE}, "restricted.*lower the level", FAILED),
        (
            READ,
            422,
            {"details": {"causes": [{"field": "spec.tolerations", "message": "bad"}]}},
            "refuses the pod duel-reader-1:\n  spec.tolerations: bad",
            INVALID,
        ),
        (
            LOG,
            400,
            {"message": 'container "main" in pod "duel-engine-0" is waiting to start'},
            '^container "main" in pod "duel-engine-0" is waiting to start$',
            FAILED,
        ),
        (LOG, 404, {"details": {"name": "duel-engine-0"}}, "no pod duel-engine-0 any", FAILED),
        (LOG, 403, {"message": 'cannot get resource "pods/log"'}, "may get pods/log", FAILED),
    ],
)
def test_a_refusal_says_what_to_do(
    doing: Doing, status: int, told: dict[str, Any], words: str, exit_code: int
) -> None:
    error = refusal(status, told, "team", doing)
    assert error.exit_code == exit_code
    with pytest.raises(CommandError, match=words) as raised:
        raise error
    assert ("marljobs" in str(raised.value)) <= (doing is APPLY)


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
                {"type": "Accepted", "status": "True", "message": "all is well"},
            ],
        }
    )
    assert "duel   team   Running   step 3/9" in text
    assert "ModelsFetched DiskFull: give the cache a larger volume" in text
    assert "all is well" not in text
    assert "restarts: engine 1\n" in text
    assert [line.split() for line in text.splitlines()[-4:]] == [
        ["policies", "version", "engines"],
        ["solver", "3", "2"],
        ["pools", "ready", "wanted", "max"],
        ["small", "1", "2", "4"],
    ]


def told(what: Observed, phase: Phase) -> str:
    """What is shown of a job of which the controller has seen this."""
    spec = MARLJob.model_validate(document()).spec
    return shown(next_status({}, what, find(what), phase, spec))


def test_a_running_job_says_what_its_pods_were_warned_of() -> None:
    warned = Report(findings=[Found("GPUsNotVisible", "no GPU is seen", Kind.WARNING)])
    pods = a_pod(role="trainer", phase="Running", ready=True, prepared=True, report=warned)
    text = told(seen(pods=(pods,), orchestrator=JobState.ACTIVE), Phase.RUNNING)
    assert "PreflightPassed GPUsNotVisible: team-trainer-0: no GPU is seen" in text


@pytest.mark.parametrize("phase", Phase)
def test_no_sentence_is_told_twice(phase: Phase) -> None:
    pods = tuple(a_pod(role) for role in ("engine", "orchestrator"))
    lines = told(seen(pods=pods, orchestrator=JobState.ACTIVE), phase).splitlines()
    sentences = [line.partition(": ")[2] for line in lines if ": " in line]
    assert len(sentences) == len(set(sentences)), lines


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


def test_a_claim_is_one_of_a_cluster(folder: Path) -> None:
    write_run(folder / "runs" / "duel")
    assert local_run("duel", None, None, "mine") is None


def test_a_cluster_is_asked_for_a_job_by_its_name(folder: Path) -> None:
    with pytest.raises(CommandError, match="Name the MARLJob"):
        local_run(None, "team", None)
