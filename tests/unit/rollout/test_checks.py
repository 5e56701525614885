from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flexmarl.contracts.job import MARLJob, RewardSpec, WorkflowSpec
from flexmarl.rollout.checks import JobCode, check_code, code_of

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
        return [str(problem) for problem in check_code(code_of(job), tmp_path)]

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


REWARDS = """
def none(): ...
def task_only(task): ...
def one_more(task, episode, weight): ...
def yields(task, episode):
    yield 1.0
async def yields_too(task, episode):
    yield 1.0
class Kind:
    def __call__(self, task, episode): ...
kind = Kind()
class Lazy:
    def __call__(self, task, episode):
        yield 1.0
lazy = Lazy()
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", "too many positional arguments; its parameters are ()"),
        ("task_only", "too many positional arguments; its parameters are (task)"),
        ("one_more", "missing a required argument: 'weight'"),
        ("yields", "is a generator; it must return the reward"),
        ("yields_too", "is a generator"),
        ("lazy", "is a generator"),
        ("Kind", "is no function"),
    ],
)
def test_a_reward_that_could_not_be_called_is_found(
    check: Callable[..., list[str]], name: str, words: str
) -> None:
    (problem,) = check(REWARDS, reward={"entrypoint": f"checked:{name}"})
    assert problem.startswith(f'spec.reward.entrypoint: "checked:{name}" ')
    assert words in problem


def test_an_object_that_can_be_called_is_a_reward(check: Callable[..., list[str]]) -> None:
    assert check(REWARDS, reward={"entrypoint": "checked:kind"}) == []


WORLDS = """
class NoSeed:
    def reset(self, task): ...
    def step(self, text): ...
class NoText:
    def reset(self, task, seed): ...
    def step(self): ...
class NoStep:
    def reset(self, task, seed): ...
    step = 3
class Static:
    @staticmethod
    def reset(task, seed): ...
    def step(self, text): ...
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NoSeed", "its reset cannot be called: too many positional arguments"),
        ("NoText", "its step cannot be called: too many positional arguments"),
        ("NoStep", "it has no method step"),
    ],
)
def test_an_environment_that_could_not_be_played_is_found(
    check: Callable[..., list[str]], name: str, words: str
) -> None:
    environment = {"entrypoint": f"checked:{name}"}
    workflow = {"name": "environment", "config": {"environment": environment}}
    (problem,) = check(WORLDS, workflow=workflow, reward=None)
    assert problem.startswith("spec.workflow.config.environment.entrypoint: ")
    assert words in problem


def test_an_environment_of_static_methods_is_one(check: Callable[..., list[str]]) -> None:
    environment = {"entrypoint": "checked:Static"}
    workflow = {"name": "environment", "config": {"environment": environment}}
    assert check(WORLDS, workflow=workflow, reward=None) == []


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


@pytest.mark.parametrize(
    ("workflow", "reward", "found"),
    [
        ({"name": "single", "config": {"prompt": "{qestion}"}},
         {"name": "exact-match", "config": {"answer": "question"}},
         ['config.prompt: record 1 of spec.data has no field "qestion"; there is question or '
          'answer; did you mean "question"?']),
        ({"name": "single"}, {"name": "exact-match", "config": {"answer": "anser"}},
         ['reward.config.answer: record 1 of spec.data has no field "anser"']),
        ({"name": "single"}, {"name": "math"},
         ['reward.config.answer: record 2 of spec.data has nothing in its field "answer"']),
        ({"name": "single"}, {"name": "gym"},
         ['"answer"', '"metadata"', '"gym"']),
    ],
)  # fmt: skip
def test_a_field_that_records_lack_is_found(
    tmp_path: Path, workflow: dict[str, Any], reward: dict[str, Any], found: list[str]
) -> None:
    records: list[dict[str, Any]] = [
        {"question": "1+1", "answer": "2"},
        {"question": "1+2", "answer": None},
    ]
    code = JobCode(
        WorkflowSpec(**workflow), RewardSpec(**reward), None, ["a"], records={"spec.data": records}
    )
    problems = [str(problem) for problem in check_code(code, tmp_path)]
    assert len(problems) == len(found)
    for problem, words in zip(problems, found, strict=True):
        assert words in problem


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def kept(group): ...\n", 'checked has no keep; did you mean "kept"'),
        ("1 / 0\n", "cannot be imported: ZeroDivisionError"),
        ("class keep: ...\n", "is no function; keep(group)"),
        ("keep = 5\n", "is no function"),
        ("def keep(group, task): ...\n", "cannot be called with a group: missing a required"),
        ("def keep(group):\n    yield True\n", "is a generator; it must return True or False"),
    ],
)
def test_code_that_is_no_filter_is_named(
    check: Callable[..., list[str]], code: str, words: str
) -> None:
    (problem,) = check(code, pipeline={"filter": {"entrypoint": "checked:keep"}})
    assert problem.startswith('spec.pipeline.filter.entrypoint: "checked:keep"')
    assert words in problem


@pytest.mark.parametrize(
    "code",
    [
        "def keep(group):\n    return True\n",
        "async def keep(group):\n    return True\n",
        "class Keep:\n    def __call__(self, group):\n        return True\nkeep = Keep()\n",
    ],
)
def test_code_that_is_a_filter_has_no_problem(check: Callable[..., list[str]], code: str) -> None:
    assert check(code, pipeline={"filter": {"entrypoint": "checked:keep"}}) == []


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (["a"], ""),
        ("a", ""),
        (["a", "aa"], 'record 1 of spec.data names "aa", which is no agent; a; did you mean "a"?'),
        ([], "has an empty list in its field"),
        (3, "has 3 in its field"),
        ([["a"]], "names a list of 1, which is no agent"),
        (None, "has nothing in its field"),
    ],
)
def test_participants_that_are_no_agents_are_found(tmp_path: Path, needs: Any, words: str) -> None:
    workflow = WorkflowSpec(name="single", participants="needs")
    records = {"spec.data": [{"question": "1", "answer": "1", "needs": needs}]}
    code = JobCode(workflow, RewardSpec(name="exact-match"), None, ["a"], records=records)
    problems = [str(problem) for problem in check_code(code, tmp_path)]
    assert len(problems) == bool(words)
    assert all(words in problem for problem in problems)


def test_a_task_without_the_column_of_participants_is_found(tmp_path: Path) -> None:
    workflow = WorkflowSpec(name="single", participants="need")
    records = {"spec.data": [{"question": "1", "answer": "1", "needs": ["a"]}]}
    code = JobCode(workflow, RewardSpec(name="exact-match"), None, ["a"], records=records)
    (problem,) = check_code(code, tmp_path)
    assert str(problem) == (
        'spec.workflow.participants: record 1 of spec.data has no field "need"; '
        'there is question, answer or needs; did you mean "needs"?'
    )
