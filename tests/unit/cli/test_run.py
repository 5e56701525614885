"""`flexmarl run` around a supervisor that plays no job; the real one is tried in tests/e2e."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.runs import evaluation, lines, metric, progress, write_job
from typer.testing import CliRunner, Result

from flexmarl.cli.app import app
from flexmarl.cli.commands import report
from flexmarl.contracts.reading import read_job


@dataclass
class Outcome:
    complete: bool = True
    message: str = ""


Played = Callable[..., Outcome]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return []


def run(monkeypatch: pytest.MonkeyPatch, played: Played, *options: str) -> Result:
    monkeypatch.setattr("flexmarl.local.supervisor.run_job", played)
    result = CliRunner().invoke(app, ["run", "job.yaml", *options])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def playing(calls: list[dict[str, Any]], outcome: Outcome, phase: str, message: str = "") -> Played:
    """A supervisor that writes a run of four steps."""

    def run_job(
        job_file: Path,
        *,
        base_dir: Path,
        run_dir: Path,
        resume: bool,
        on_event: Callable[[str], None],
    ) -> Outcome:
        calls.append({"job": read_job(job_file), "base_dir": base_dir, "resume": resume})
        on_event("trainer-0 died (exit 1); restart 1 of 3")
        (run_dir / "metrics.jsonl").write_text(lines([metric(step) for step in range(4)]))
        (run_dir / "evals.jsonl").write_text(lines([evaluation(0, 0.25), evaluation(4, 0.75)]))
        progress(run_dir, phase, 4, message=message)
        return outcome

    return run_job


def test_a_job_that_completes_shows_its_steps_and_writes_a_report(
    tmp_path: Path, calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(tmp_path)
    played = playing(calls, Outcome(), "Complete")
    result = run(monkeypatch, played, "--set", "spec.seed=3")
    assert result.exit_code == 0
    assert [(c["job"].job.spec.seed, c["base_dir"], c["resume"]) for c in calls] == [
        (3, tmp_path, False)
    ]
    for text in ("trainer-0 died (exit 1); restart 1 of 3", "step 4/4  solver 0.750", "75.0%"):
        assert text in result.stdout
    assert result.stdout.splitlines()[-1] == "Report: runs/digits/report.html"
    assert (tmp_path / "runs/digits/report.html").exists()


def test_a_job_that_fails_says_its_last_words_and_has_a_report(
    tmp_path: Path, calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(tmp_path)
    outcome = Outcome(False, "trainer-0 died 4 times; its last words: CUDA out of memory")
    result = run(monkeypatch, playing(calls, outcome, "Failed"), "--plain")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [f"The job failed: {outcome.message}",
                                          "Logs: runs/digits/logs"]  # fmt: skip
    assert (tmp_path / "runs/digits/report.html").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_report_is_written_changes_nothing(
    tmp_path: Path, calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    write_job(tmp_path)
    write = report.write

    def bothered(root: Path) -> Path:
        os.kill(os.getpid(), number)
        return write(root)

    monkeypatch.setattr(report, "write", bothered)
    handler = signal.getsignal(number)
    result = run(monkeypatch, playing(calls, Outcome(), "Complete"))
    assert result.exit_code == 0
    assert (tmp_path / "runs/digits/report.html").exists()
    assert signal.getsignal(number) == handler


def test_an_interrupted_job_says_how_to_go_on(
    tmp_path: Path, calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(tmp_path)

    def interrupted(*_: object, **__: object) -> Outcome:
        raise KeyboardInterrupt

    result = run(monkeypatch, interrupted, "--run-dir", "mine")
    assert result.exit_code == 130
    assert "flexmarl run job.yaml --run-dir mine --resume" in result.stderr


def test_a_run_is_resumed_from_its_own_job_file(
    tmp_path: Path, calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(tmp_path)
    played = playing(calls, Outcome(), "Running")
    run(monkeypatch, played)
    (tmp_path / "job.yaml").write_text((tmp_path / "runs/digits/job.yaml").read_text())
    result = run(monkeypatch, played, "--resume")
    assert result.exit_code == 0
    assert calls[1]["resume"]
    assert calls[1]["base_dir"] == tmp_path


def test_a_complete_run_has_nothing_to_resume(
    tmp_path: Path, calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(tmp_path)
    played = playing(calls, Outcome(), "Complete")
    run(monkeypatch, played)
    result = run(monkeypatch, played, "--resume")
    assert (result.exit_code, len(calls)) == (0, 1)
    assert "nothing to resume" in result.stdout
