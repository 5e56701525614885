"""What a model and an engine can do is asked of them, and no more."""

import pytest
from tests.unit.contracts.jobs import good

from flexmarl.contracts.overrides import apply_overrides
from flexmarl.contracts.rules import check

SIZES = "random://llama?hidden=64&layers=2&heads=4"
SCRIPTED = "spec.policies[solver].engine={kind: scripted}"
TOKENS = "spec.agents[solver].sampling.maxTokens"
FIELD = "spec.agents[0].sampling.maxTokens"


def model(uri: str) -> str:
    return f"spec.policies[solver].model={{uri: '{uri}'}}"


def found(*overrides: str) -> list[str]:
    document, _, problems = apply_overrides(good(), overrides)
    assert problems == []
    return [str(problem) for problem in check(document)]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            [model(f"{SIZES}&context=128"), f"{TOKENS}=128"],
            f"{FIELD}: 128, but the model's context is 128 tokens; must be lower, so that a prompt "
            "has room, too",
        ),
        (
            [model(SIZES), f"{TOKENS}=2000"],
            f"{FIELD}: 2000, but the model's context is 1024 tokens",
        ),
        (
            [model(f"{SIZES}&context=200"), "spec.agents[solver].sampling={}"],
            f"{FIELD}: 256 by default, but the model's context is 200 tokens",
        ),
    ],
)
def test_a_turn_longer_than_the_context_is_refused(overrides: list[str], says: str) -> None:
    (problem,) = found(*overrides)
    assert problem.startswith(says)


@pytest.mark.parametrize(
    "overrides",
    [
        [model(f"{SIZES}&context=128"), f"{TOKENS}=127"],
        [model(f"{SIZES}&context=many"), f"{TOKENS}=2000"],
        [model("file://model?context=9"), f"{TOKENS}=2000"],
        [model(f"{SIZES}&context=128"), SCRIPTED, f"{TOKENS}=2000"],
        ["spec.agents[judge].sampling.maxTokens=100000"],
    ],
)
def test_a_context_that_the_job_does_not_tell_is_not_guessed(overrides: list[str]) -> None:
    assert found(*overrides) == []


def test_a_distribution_that_a_scripted_engine_lacks_is_worth_a_warning() -> None:
    sampling = "spec.agents[solver].sampling={maxTokens: 4, temperature: 0.5}"
    assert found(SCRIPTED, sampling) == [
        "spec.agents[0].sampling.temperature: would be ignored; "
        "a scripted engine has no distribution to sample from or to compare"
    ]
    gap = "spec.policies[solver].training.maxLogprobGap=0.5"
    (problem,) = found(SCRIPTED, gap)
    assert problem.startswith("spec.policies[0].training.maxLogprobGap: would be ignored")
    assert found(sampling) == []
