"""How the end of a process's body becomes an exit code and last words."""

from pathlib import Path

import pytest

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.preparation import PASSING
from flexmarl.runtime import main
from flexmarl.runtime.errors import (
    InvalidJobError,
    JobFailedError,
    NotBegunError,
    UnavailableError,
)
from flexmarl.runtime.process import HOPELESS
from flexmarl.runtime.settings import Settings

JOB = """
apiVersion: flexmarl.io/v1alpha1
kind: MARLJob
metadata: {name: team}
spec:
  policies: [{name: solver, model: {uri: "random://llama?hidden=8"}}]
  agents: [{name: solver, policy: solver}]
  workflow: {name: solver-verifier}
  data: {uri: "gym://chain_sum"}
  steps: 1
"""


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.setenv("FLEXMARL_JOB_FILE", str(tmp_path / "job.yaml"))
    monkeypatch.setenv("FLEXMARL_JOB_UID", "uid")
    monkeypatch.setattr(main, "configure", lambda *_: None)  # the test's own logging stays


def test_a_job_that_cannot_be_used_ends_with_its_reason_and_a_code_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def body(settings: Settings, job: MARLJob) -> None:
        raise InvalidJobError("model.uri: no such\nmodel")

    with pytest.raises(SystemExit) as end:
        main.run("test", body)
    assert end.value.code == HOPELESS
    assert capsys.readouterr().err.splitlines()[-1] == "model.uri: no such model"


def test_a_job_file_that_does_not_hold_ends_the_same_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("steps: 1", "stepz: 1"))
    with pytest.raises(SystemExit) as end:
        main.run("test", never)
    assert end.value.code == HOPELESS
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith('1 problem spec.stepz (line 10): unknown field; did you mean "steps"?')


def test_settings_that_do_not_hold_end_the_same_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FLEXMARL_JOB_UID")
    monkeypatch.setenv("FLEXMARL_METRICS_PORT", "http")
    with pytest.raises(SystemExit) as end:
        main.run("test", never)
    assert end.value.code == HOPELESS
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("FLEXMARL_JOB_UID: Field required; FLEXMARL_METRICS_PORT: ")


def test_what_a_restart_may_mend_outranks_what_it_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def body(settings: Settings, job: MARLJob) -> None:
        raise ExceptionGroup("both", [JobFailedError("over"), UnavailableError("try again")])

    with pytest.raises(SystemExit) as end:
        main.run("test", body)
    assert end.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1] == "try again"


def test_what_could_not_begin_yet_asks_to_be_tried_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def body(settings: Settings, job: MARLJob) -> None:
        raise NotBegunError("the store does not answer")

    with pytest.raises(SystemExit) as end:
        main.run("test", body)
    assert end.value.code == PASSING
    assert capsys.readouterr().err.splitlines()[-1] == "the store does not answer"


async def never(settings: Settings, job: MARLJob) -> None:
    raise AssertionError("the body ran")


def test_anything_else_surfaces() -> None:
    async def body(settings: Settings, job: MARLJob) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(ExceptionGroup):
        main.run("test", body)
