import copy
from typing import Any

import pytest
from tests.unit.contracts.jobs import MODEL, good

from flexmarl.contracts.overrides import apply_overrides
from flexmarl.contracts.rules import check

OPENAI = "{kind: openai, openai: {baseUrl: 'http://x', model: m}}"


def found(*overrides: str, warnings: bool = False) -> list[str]:
    document, _, problems = apply_overrides(good(), overrides)
    assert problems == []
    before = copy.deepcopy(document)
    result = [str(problem) for problem in check(document) if problem.warning == warnings]
    assert document == before
    return result


def test_a_good_job_breaks_no_rule() -> None:
    assert check(good()) == []


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ["spec.policies[judge].name=solver", "spec.agents[judge].policy=solver"],
            'spec.policies[2].name: "solver" is already the name of spec.policies[0]; '
            "names are unique",
        ),
        (
            ["spec.agents[judge].name=solver"],
            'spec.agents[2].name: "solver" is already the name of spec.agents[0]; names are unique',
        ),
        (
            ["spec.agents[judge].name=user"],
            'spec.agents[2].name: "user" is a role of every chat; choose another name',
        ),
        (
            ["spec.agents[verifier].policy=solver"],
            'spec.policies[1].name: no agent plays "verifier"; name it in an agent',
        ),
        (
            ["spec.policies[verifier].model="],
            "spec.policies[1].model: required, but missing; only an openai engine goes without a "
            "model",
        ),
        (
            ["spec.policies[judge].model={uri: 'file://m'}"],
            "spec.policies[2].model: would be ignored; the API of an openai engine brings its own; "
            "remove it",
        ),
        (
            ["spec.policies[judge].tokenizer=bytes://"],
            "spec.policies[2].tokenizer: would be ignored; the API of an openai engine brings its "
            "own; remove it",
        ),
        (
            ["spec.policies[judge].engine.openai="],
            "spec.policies[2].engine.openai: required for an openai engine, but missing",
        ),
        (
            ["spec.policies[judge].training="],
            'spec.policies[2].training.algorithm: "grpo" cannot train weights behind an API; must '
            'be "none" for an openai engine',
        ),
        (
            ["spec.policies[solver].engine.scripted={}"],
            "spec.policies[0].engine.scripted: would be ignored; the engine's kind is "
            "transformers; remove it",
        ),
        (
            ["spec.policies[solver].engine={kind: scripted, transformers: {threads: 2}}"],
            "spec.policies[0].engine.transformers: would be ignored; the engine's kind is "
            "scripted; remove it",
        ),
        (
            ["spec.policies[solver].tokenizer=random://x"],
            'spec.policies[0].tokenizer: "random://x" is not allowed; must start with bytes://, '
            "file://, pypi:// or hf://",
        ),
        (
            ["spec.policies[solver].tokenizer=file://"],
            'spec.policies[0].tokenizer: "file://" is not allowed; must start with bytes://, '
            "file://, pypi:// or hf://",
        ),
        (
            ["spec.policies[judge].training.lr=1"],
            "spec.policies[2].training.lr: would be ignored; the policy is not trained; remove it",
        ),
        (
            ["spec.policies[solver].training.algorithm=none"],
            "spec.policies[0].training.lr: would be ignored; the policy is not trained; remove it",
        ),
        (
            ["spec.policies[solver].training.algorithm=none"],
            "spec.policies[0].training.warmStart: would be ignored; the policy is not trained; "
            "remove it",
        ),
        (
            ["spec.policies[solver].training.betas=[1, 0.5]"],
            "spec.policies[0].training.betas[0]: 1 is not allowed; must be in [0, 1)",
        ),
        (
            ["spec.policies[solver].training.warmStart.agent=solvr"],
            'spec.policies[0].training.warmStart.agent: no agent is named "solvr"; "solver" is '
            'played by solver; did you mean "solver"?',
        ),
        (
            ["spec.policies[solver].training.warmStart.agent=judge"],
            'spec.policies[0].training.warmStart.agent: "judge" plays the policy "judge"; must be '
            'an agent of "solver"',
        ),
        (
            ["spec.policies[solver].training.warmStart.prompt='{'"],
            "spec.policies[0].training.warmStart.prompt: \"{\": Single '{' encountered in format "
            "string; write {{ and }} for braces",
        ),
        (
            ["spec.policies[solver].training.warmStart.completion='{}'"],
            'spec.policies[0].training.warmStart.completion: "{}" is not allowed; only names of '
            "task fields stand in braces, as in {question}",
        ),
        (
            ["spec.agents[solver].sampling.temperature=0"],
            "spec.agents[0].sampling.temperature: 0 makes all episodes of a group alike; must be "
            'greater than 0 while "solver" is trained',
        ),
        (
            ["spec.agents[judge].sampling.topK=5"],
            "spec.agents[2].sampling.topK: would be ignored; chat completions have no such "
            "parameter; remove it",
        ),
        (
            ["spec.agents[judge].sampling.topP=0.5"],
            "spec.agents[2].sampling.topP: would be ignored; temperature 0 always takes the "
            "likeliest token; remove it",
        ),
        (
            ["spec.workflow={}"],
            "spec.workflow: says not what to run; exactly one of name and entrypoint is needed",
        ),
        (
            ["spec.reward={name: a, entrypoint: 'a:b'}"],
            "spec.reward: both name and entrypoint are given; exactly one of name and entrypoint "
            "is needed",
        ),
        (
            ["spec.reward={}"],
            "spec.reward: says not what to run; exactly one of name and entrypoint is needed",
        ),
        (
            ["spec.code={path: src}"],
            "spec.code: would be ignored; no workflow, environment, reward or filter has an "
            "entrypoint; remove it",
        ),
        (
            ["spec.eval.data.format=jsonl"],
            "spec.eval.data.format: would be ignored; a generator has no format; remove it",
        ),
        (
            ["spec.data.size=10"],
            "spec.data.size: would be ignored; a file has the size it has; remove it",
        ),
        (
            ["spec.data={uri: 'file://a.jsonl', seed: 1, shuffle: false}"],
            "spec.data.seed: would be ignored; a file that is not shuffled needs none; remove it",
        ),
        (
            ["spec.policies[solver].training.warmStart.data.uri=file://a.txt"],
            'spec.policies[0].training.warmStart.data.uri: "file://a.txt" ends in none of .jsonl, '
            ".ndjson, .parquet or .pq; give the format",
        ),
        (
            ["spec.eval.data.shuffle=true"],
            "spec.eval.data.shuffle: would be ignored; held-out tasks are played in the order of "
            "their source; remove it",
        ),
        (
            ["spec.eval.data={uri: 'file://a.jsonl', seed: 1}"],
            "spec.eval.data.seed: would be ignored; held-out tasks of a file are not shuffled; "
            "remove it",
        ),
        (
            ["spec.batch.microBatch=65"],
            "spec.batch.microBatch: 65 groups at once, but a step has 64; must be at most "
            "tasksPerStep",
        ),
        (
            ["spec.eval.tasks=101"],
            "spec.eval.tasks: 101 tasks, but its data has 100; must be at most eval.data.size",
        ),
        (
            ["spec.store={url: 'redis://x', maxMemoryMib: 5}"],
            "spec.store.maxMemoryMib: would be ignored; the store at url has its own limit; remove "
            "it",
        ),
        (
            ["spec.store.url=redis://x", "spec.roles.store={}"],
            "spec.roles.store: would be ignored; store.url names a store that runs elsewhere; "
            "remove it",
        ),
    ],
)
def test_a_broken_rule_names_field_value_and_what_is_allowed(
    overrides: list[str], says: str
) -> None:
    assert says in found(*overrides)


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("spec.agents[solver].sampling.topP=0.9", "spec.agents[0].sampling.topP"),
        ("spec.agents[solver].sampling.topK=5", "spec.agents[0].sampling.topK"),
        ("spec.policies[solver].training.warmupSteps=40", "spec.policies[0].training.warmupSteps"),
        ("spec.eval.everySteps=40", "spec.eval.everySteps"),
        ("spec.roles.trainer.replicas=3", "spec.roles.trainer.replicas"),
        ("spec.network.hostNetwork=true", "spec.network.hostNetwork"),
    ],
)
def test_what_is_odd_but_possible_is_a_warning(override: str, field: str) -> None:
    assert found(override) == []
    assert [text.split(": ")[0] for text in found(override, warnings=True)] == [field]


@pytest.mark.parametrize(
    "override",
    [
        "spec.agents[solver].sampling={topP: 1.0, topK: 0}",
        "spec.reward={entrypoint: 'a:b'}",
        "spec.policies[solver].engine={kind: scripted, scripted: {medianTokens: 3}}",
        "spec.data={uri: 'file://a.txt', format: jsonl}",
        "spec.policies[solver].tokenizer=bytes://",
        "spec.batch={tasksPerStep: 1}",
        "spec.policies[judge].model=",
        "spec.eval.data.shuffle=false",
        "spec.eval.data.seed=3",
    ],
)
def test_what_is_used_is_allowed(override: str) -> None:
    assert found(override) == []


def test_code_may_hold_an_environment_alone() -> None:
    play = "{name: environment, config: {environment: {entrypoint: 'a:b'}}}"
    assert found("spec.code={path: src}", f"spec.workflow={play}") == []


def test_a_job_that_trains_nothing_is_refused() -> None:
    document: dict[str, Any] = good()
    for policy in document["spec"]["policies"]:
        policy.update(model=MODEL, engine={}, training={"algorithm": "none"})
    says = "spec.policies: no policy is trained; at least one must learn"
    assert [str(problem) for problem in check(document)] == [says]


@pytest.mark.parametrize("document", [None, [], {}, {"spec": 3}, {"spec": {"agents": [1, None]}}])
def test_rules_pass_over_what_the_schema_refuses(document: Any) -> None:
    assert check(document) == []
