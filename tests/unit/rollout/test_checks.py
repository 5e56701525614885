"""What is found wrong with a job's workflow before it is played."""

from __future__ import annotations

from collections.abc import Callable

import pytest


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
        "    async def run(self, task, team): ...\n"
    )
    workflow = {"entrypoint": "checked:run", "config": {"round": 2, "rounds": "many"}}
    assert check(code, workflow=workflow) == [
        'spec.workflow.config.rounds: "many" is not allowed; must be a whole number',
        'spec.workflow.config.round: unknown field; did you mean "rounds"?',
    ]


def test_a_config_that_nothing_reads_is_refused(check: Callable[..., list[str]]) -> None:
    code = "async def run(task, team): ...\n"
    (problem,) = check(code, workflow={"entrypoint": "checked:run", "config": {"x": 1}})
    assert problem == "spec.workflow.config.x: unknown field; allowed here: none"


WORKFLOWS = """
import functools
from flexmarl.rollout.api import Workflow

class Sync(Workflow):
    def run(self, task, team): ...
class NoTeam(Workflow):
    async def run(self, task): ...
class Yields(Workflow):
    async def run(self, task, team):
        yield 1.0
class Empty(Workflow): ...
class SyncStart(Workflow):
    def start(self): ...
    async def run(self, task, team): ...
class NoArguments(Workflow):
    def __init__(self): ...
    async def run(self, task, team): ...
class Breaks(Workflow):
    def __init__(self, config, agents):
        {}["lost"]
    async def run(self, task, team): ...
class NoModel(Workflow):
    Config = dict
    async def run(self, task, team): ...
async def no_team(task): ...

def traced(function):
    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments)
    return call
class Wrapped(Workflow):
    @traced
    async def run(self, task, team): ...
@traced
async def wrapped(task, team): ...
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Sync", "its run is no async function"),
        ("NoTeam", "its run cannot be called: too many positional arguments"),
        ("Yields", "its run is no async function"),
        ("Empty", "it has no run of its own"),
        ("SyncStart", "its start is no async function"),
        ("NoArguments", "cannot be made: too many positional arguments; its parameters are ()"),
        ("Breaks", "cannot be made: KeyError: 'lost' ("),
        ("NoModel", "its Config is no subclass of flexmarl.rollout.api.Config"),
        ("no_team", "too many positional arguments; its parameters are (task)"),
    ],
)
def test_a_workflow_that_could_not_be_run_is_found(
    check: Callable[..., list[str]], name: str, words: str
) -> None:
    (problem,) = check(WORKFLOWS, workflow={"entrypoint": f"checked:{name}"})
    assert problem.startswith(f'spec.workflow.entrypoint: "checked:{name}" ')
    assert words in problem


@pytest.mark.parametrize("name", ["Wrapped", "wrapped"])
def test_a_wrapped_async_function_is_one(check: Callable[..., list[str]], name: str) -> None:
    assert check(WORKFLOWS, workflow={"entrypoint": f"checked:{name}"}) == []


def test_a_missing_folder_of_code_is_said_once(check: Callable[..., list[str]]) -> None:
    problems = check(code={"path": "nowhere"}, workflow={"entrypoint": "not_here:run"})
    assert [problem.split(":")[0] for problem in problems] == ["spec.code.path"]


def test_all_that_is_wrong_with_a_config_is_said_at_once(check: Callable[..., list[str]]) -> None:
    scorer = {"name": "exact-match", "config": {"extract": "(a"}}
    config = {"solver": "b", "scorer": scorer, "acept": "yes", "solverPrompt": "{a.b}"}
    two = [{"name": "a", "policy": "a"}, {"name": "c", "policy": "a"}]
    problems = check(
        agents=two, workflow={"name": "solver-verifier", "config": config}, reward=None
    )
    assert [
        problem.split(": ")[0].removeprefix("spec.workflow.config.") for problem in problems
    ] == [
        "acept",
        "solver",
        "solverPrompt",
        "scorer.config.extract",
    ]


def test_rewards_that_another_replaces_are_a_warning(check: Callable[..., list[str]]) -> None:
    (problem,) = check(workflow={"name": "debate", "config": {}}, agents=[
        {"name": "a", "policy": "a"}, {"name": "b", "policy": "a"}])  # fmt: skip
    assert "takes the place of the rewards that workflow debate gives" in problem
