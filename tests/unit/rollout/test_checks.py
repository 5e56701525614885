from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flexmarl.contracts.job import MARLJob
from flexmarl.rollout.checks import check_job

MODEL = {"uri": "random://llama?hidden=64&layers=2&heads=4"}


@pytest.fixture
def check(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """The problems of a job whose own module is `checked`, as text."""

    def run(module: str = "", /, **changes: Any) -> list[str]:
        (tmp_path / "checked.py").write_text(module)
        spec = {
            "policies": [{"name": "a", "model": MODEL}],
            "agents": [{"name": "a", "policy": "a"}],
            "workflow": {"name": "single"},
            "reward": {"name": "exact-match"},
            "code": {"path": "."},
            "data": {"uri": "file://x.jsonl"},
            "steps": 1,
        }
        job = MARLJob.model_validate({"metadata": {"name": "x"}, "spec": spec | changes})
        return [str(problem) for problem in check_job(job, tmp_path)]

    yield run
    sys.modules.pop("checked", None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


def test_a_job_that_can_be_played_has_no_problem(check: Callable[..., list[str]]) -> None:
    assert check() == []


def test_everything_wrong_is_said_at_once(check: Callable[..., list[str]]) -> None:
    problems = check(
        workflow={"name": "solver-verifier"},
        reward={"name": "maths"},
        code={"path": "nowhere"},
    )
    assert [problem.split(":")[0] for problem in problems] == [
        "spec.code.path",
        "spec.agents",
        "spec.reward.name",
    ]


def test_a_workflow_without_rewards_needs_the_jobs(check: Callable[..., list[str]]) -> None:
    (problem,) = check(reward=None)
    assert problem.startswith("spec.reward: missing: workflow single returns no rewards")


def test_an_entry_point_that_does_not_import_names_field_value_and_error(
    check: Callable[..., list[str]],
) -> None:
    (problem,) = check("import no_such_thing\n", workflow={"entrypoint": "checked:run"})
    assert problem.startswith(
        'spec.workflow.entrypoint: "checked:run": cannot be imported: '
        "ModuleNotFoundError: No module named 'no_such_thing'"
    )
    assert "checked.py, line 1" in problem


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def oops(:\n", "SyntaxError"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("raise SystemExit\n", "SystemExit"),
        ("def run(task, team): ...\n", "is no workflow"),
        ("class run: ...\n", "is no workflow"),
        ("async def ran(task, team): ...\n", 'checked has no run; did you mean "ran"'),
    ],
)
def test_code_that_is_no_workflow_is_named(
    check: Callable[..., list[str]], code: str, words: str
) -> None:
    (problem,) = check(code, workflow={"entrypoint": "checked:run"})
    assert problem.startswith('spec.workflow.entrypoint: "checked:run"')
    assert words in problem


def test_a_module_that_is_not_there_points_to_the_code_folder(
    check: Callable[..., list[str]],
) -> None:
    (problem,) = check(workflow={"entrypoint": "not_here:run"})
    assert problem.endswith("; spec.code.path is the folder that modules are imported from")


def test_an_own_workflows_config_is_checked_by_its_model(check: Callable[..., list[str]]) -> None:
    code = (
        "from flexmarl.rollout.api import *\n"
        "class RunConfig(Config):\n    rounds: int = 1\n"
        "class run(Workflow):\n    Config = RunConfig\n"
    )
    workflow = {"entrypoint": "checked:run", "config": {"round": 2, "rounds": "many"}}
    assert check(code, workflow=workflow) == [
        'spec.workflow.config.rounds: "many": input should be a valid integer, '
        "unable to parse string as an integer",
        'spec.workflow.config.round: unknown key; rounds; did you mean "rounds"?',
    ]


def test_a_config_that_nothing_reads_is_refused(check: Callable[..., list[str]]) -> None:
    code = "async def run(task, team): ...\n"
    (problem,) = check(code, workflow={"entrypoint": "checked:run", "config": {"x": 1}})
    assert problem.startswith("spec.workflow.config.x: unknown key")


def test_a_sampling_that_an_external_api_does_not_know_is_refused(
    check: Callable[..., list[str]],
) -> None:
    api = {"baseUrl": "http://x/v1", "model": "m"}
    external = {"kind": "openai", "openai": api}
    problems = check(
        policies=[{"name": "a", "engine": external, "training": {"algorithm": "none"}}],
        agents=[{"name": "a", "policy": "a", "sampling": {"topK": 5}}],
    )
    assert problems == [
        "spec.agents[0].sampling.topK: 5: a chat completions API has no such parameter; 0"
    ]
