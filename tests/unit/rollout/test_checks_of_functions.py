"""Rewards, environments and filters that could not be called are found before the job is played."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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
