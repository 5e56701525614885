import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.contracts.jobs import good

from flexmarl.contracts.documents import dump
from flexmarl.contracts.explain import fields_of, pattern_words
from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.reading import JobFileError, load_job, read_job, served_job

EVERYTHING_WRONG = """\
apiVersion: flexmarl.io/v1
kind: MARLJob
metadata:
  nmae: largest digit
spec:
  stpes: 40
  seed: -1
  lr: 3
  policies:
    - name: Solver
      model: {uri: "rndom://llama?hidden=64"}
      training:
        lr: -1
        algorithm: gpro
        learning_rate: 3
        warmStart: {data: {uri: "file://warm.jsonl"}, agent: slver, steps: 100}
    - name: verifier
      training: {lr: .inf, betas: [0.9, 1.5]}
      engine: {kind: openai, scripted: {medianTokens: 3}}
  agents:
    - {name: solver, policy: verifer, sampling: {maxTokens: two}}
    - {name: solver, policy: verifier, sampling: {max_tokens: 2, temperature: 0}}
    - {name: no, policy: verifier}
  workflow: {name: solver-verifier, entrypoint: "a"}
  data: {uri: "file://train.json", size: 3, size: 4}
  eval: {data: {uri: "gym://chain_sum", format: jsonll}, everySteps: "10"}
  batch: {tasksPerStep: 64, groupSize: 1, microBatch: 100}
  store: {url: "redis://:secret@host:1", maxMemoryMib: 100}
"""
EVERY_PROBLEM = """\
apiVersion (line 1): "flexmarl.io/v1" is not allowed; must be flexmarl.io/v1alpha1
metadata.name (line 3): required, but missing; "nmae" stands there
spec.stpes (line 6): unknown field; did you mean "steps"?
spec.seed (line 7): -1 is not allowed; must be at least 0
spec.lr (line 8): unknown field here; did you mean spec.policies[].training.lr?
spec.policies[0].name (line 10): "Solver" is not allowed; must be lower-case letters, digits and \
inner "-", as in solver-1
spec.policies[0].model.uri (line 11): "rndom://llama?hidden=64" is not allowed; must be a URI that \
starts with random://, file://, pypi://, hf://, s3:// or pvc://; did you mean \
"random://llama?hidden=64"?
spec.policies[0].training.lr (line 13): -1 is not allowed; must be greater than 0
spec.policies[0].training.algorithm (line 14): "gpro" is not allowed; must be grpo, dr-grpo, rloo, \
reinforce-pp or none; did you mean "grpo"?
spec.policies[0].training.learning_rate (line 15): unknown field; allowed here: algorithm, lr, \
warmupSteps, weightDecay, betas, maxGradNorm, clipLow, clipHigh, \
correction, correctionCap, deadGroups, maxLogprobGap, simulatedTokensPerSecond, warmStart
spec.policies[0].training.warmStart.agent (line 16): no agent is named "slver"; "Solver" is played \
by none
spec.policies[1].training.algorithm (line 18): "grpo" cannot train weights behind an API; must be \
"none" for an openai engine
spec.policies[1].training.betas[1] (line 18): 1.5 is not allowed; must be in [0, 1)
spec.policies[1].training.lr (line 18): .inf is not a finite number
spec.policies[1].engine.openai (line 19): required for an openai engine, but missing
spec.policies[1].engine.scripted (line 19): would be ignored; the engine's kind is openai; remove it
spec.agents[0].policy (line 21): no policy is named "verifer"; there is Solver or verifier; did \
you mean "verifier"?
spec.agents[0].sampling.maxTokens (line 21): "two" is not allowed; must be a whole number
spec.agents[1].name (line 22): "solver" is already the name of spec.agents[0]; names are unique
spec.agents[1].sampling.max_tokens (line 22): unknown field; did you mean "maxTokens"?
spec.agents[1].sampling.temperature (line 22): 0 makes all episodes of a group alike; must be \
greater than 0 while "verifier" is trained
spec.agents[2].name (line 23): false is no text in YAML; write it in quotes if you mean text
spec.workflow (line 24): both name and entrypoint are given; exactly one of name and entrypoint is \
needed
spec.workflow.entrypoint (line 24): "a" is not allowed; must be an entry point, \
package.module:attribute
spec.data.size (line 25): duplicate key, first given on line 25
spec.data.uri (line 25): "file://train.json" ends in none of .jsonl, .ndjson, .parquet or \
.pq; give the format
spec.eval.data.format (line 26): "jsonll" is not allowed; must be jsonl or parquet; did you mean \
"jsonl"?
spec.eval.everySteps (line 26): "10" is not allowed; must be a whole number
spec.batch.groupSize (line 27): 1 is not allowed; must be at least 2
spec.batch.microBatch (line 27): 100 groups at once, but a step has 64; must be at most tasksPerStep
spec.store.maxMemoryMib (line 28): would be ignored; the store at url has its own limit; remove it
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("job") / "job.yaml"


def problems_of(file: Path, text: str, *overrides: str) -> list[str]:
    file.write_text(text)
    with pytest.raises(JobFileError) as caught:
        load_job(file, overrides)
    return [str(problem) for problem in caught.value.problems]


def test_every_problem_comes_at_once_with_field_value_and_nearest_match(file: Path) -> None:
    assert problems_of(file, EVERYTHING_WRONG) == EVERY_PROBLEM.splitlines()


def test_the_error_reads_as_one_text(file: Path) -> None:
    file.write_text(EVERYTHING_WRONG)
    with pytest.raises(JobFileError) as caught:
        load_job(file)
    assert str(caught.value).startswith(f"{file}: 31 problems\n  apiVersion (line 1): ")


def test_a_good_file_becomes_a_job(file: Path) -> None:
    file.write_text(dump(good()))
    read = read_job(file)
    assert read.job == MARLJob.model_validate(good())
    assert read.document == good()
    assert read.warnings == ()


def test_overrides_are_in_the_job_and_in_what_a_run_keeps(file: Path) -> None:
    file.write_text(dump(good()))
    read = read_job(file, ["spec.seed=7", "spec.policies[verifier].training.lr=1e-4"])
    assert read.job.spec.seed == 7
    assert read.job.spec.policy("verifier").training.lr == 1e-4
    file.write_text(dump(read.document))
    assert load_job(file) == read.job


def test_a_problem_of_an_override_names_it(file: Path) -> None:
    assert problems_of(file, dump(good()), "spec.batch.groupsize=3", "spec.seed=x") == [
        "spec.batch.groupsize (--set spec.batch.groupsize=3): unknown field; "
        'did you mean "groupSize"?',
        'spec.seed (--set spec.seed=x): "x" is not allowed; must be a whole number',
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; a MARLJob has apiVersion, kind, metadata, spec"),
        ("# only a comment", "is empty"),
        ("- 1", "(line 1): holds no mapping"),
        ("just text", "(line 1): holds no mapping"),
        ("{}", "metadata (line 1): required, but missing"),
        ("spec:", "spec (line 1): nothing is not allowed; must be a mapping"),
    ],
)
def test_a_file_that_is_no_job_is_refused(file: Path, text: str, says: str) -> None:
    assert any(says in problem for problem in problems_of(file, text))


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"name: caf\xe9")
    for name, says in (
        ("none", "there is no such file"),
        ("latin", "is not UTF-8 text"),
        (".", "cannot be read: Is a directory"),
    ):
        with pytest.raises(JobFileError, match=says):
            load_job(tmp_path / name)


@pytest.mark.parametrize("value", ["true", '"3"', "3.5", "[3]"])
def test_a_number_is_a_number_as_for_an_api_server(file: Path, value: str) -> None:
    found = problems_of(file, dump(good()), f"spec.steps={value}")
    assert [problem.rsplit("; ", 1)[1] for problem in found] == ["must be a whole number"]


def test_fields_are_camel_case_only(file: Path) -> None:
    document = good()
    document["spec"]["batch"] = {"tasks_per_step": 3}
    assert problems_of(file, dump(document)) == [
        'spec.batch.tasks_per_step (line 50): unknown field; did you mean "tasksPerStep"?'
    ]


def test_a_password_is_not_shown(file: Path) -> None:
    found = problems_of(file, dump(good()), "spec.store.url=http://:secret@host")
    assert '"http://***@host" is not allowed' in found[0].split("): ", 1)[1]


def test_every_pattern_of_the_schema_is_explained() -> None:
    def patterns(node: Any) -> Iterator[str]:
        match node:
            case dict():
                if isinstance(node.get("pattern"), str):
                    yield node["pattern"]
                for value in node.values():
                    yield from patterns(value)
            case list():
                for value in node:
                    yield from patterns(value)

    found = set(patterns(MARLJob.model_json_schema()))
    assert found
    assert [one for one in found if pattern_words(one).startswith("what matches")] == []


KEYS = sorted({"size", "url", *json.dumps(good()).replace('"', " ").replace(":", " ").split()})
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(KEYS),
    lambda inner: (
        st.lists(inner, max_size=3)
        # In JSON a character may take twelve, and YAML knows a key by its first thousand.
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=80), inner, max_size=3)
    ),
    max_leaves=8,
)


def places(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(node, dict | list):
        pairs = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in pairs:
            yield from places(value, (*path, key))


@given(st.lists(st.tuples(st.sampled_from(list(places(good()))[1:]), ANYTHING), max_size=4))
def test_no_value_anywhere_makes_a_traceback(
    file: Path, changes: list[tuple[tuple[str | int, ...], Any]]
) -> None:
    document: Any = good()
    for path, value in changes:
        *parents, last = path
        node = document
        for part in parents:
            node = node[part] if _holds(node, part) else None
        if isinstance(node, dict) or _holds(node, last):
            node[last] = value
    file.write_text(dump(document))
    _load_or_explain(file)


@given(st.text() | st.text("ab:-[]{}&*!<\n #'\"|>?,1.%@`~"))
def test_no_text_makes_a_traceback(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", errors="replace")
    _load_or_explain(file)


def models(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[Any]:
    """Of `data` the mappings whose fields the schema names."""
    if isinstance(data, dict) and fields_of(path):
        yield data
        for key, value in data.items():
            yield from models(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from models(value, (*path, index))


@given(st.data(), st.lists(ANYTHING, min_size=1, max_size=4))
def test_a_process_reads_the_job_of_a_later_release(
    file: Path, data: st.DataObject, values: list[Any]
) -> None:
    document = good()
    file.write_text(dump(document))
    job = load_job(file)
    assert served_job(file) == (job, [])
    there = list(models(document))
    for number, value in enumerate(values):
        data.draw(st.sampled_from(there))[f"novelty{number}"] = value
    file.write_text(json.dumps(document))
    found, unknown = served_job(file)
    # Of what lies in metadata nothing is refused by any release.
    assert found == job
    assert {name.rpartition(".")[2] for name in unknown} <= {f"novelty{n}" for n in range(4)}


def test_a_process_is_told_all_that_is_wrong_with_its_job(file: Path) -> None:
    document = good()
    document["spec"] |= {"novelty": 1, "steps": "three"}
    file.write_text(dump(document))
    with pytest.raises(JobFileError) as served:
        served_job(file)
    with pytest.raises(JobFileError) as loaded:
        load_job(file)
    assert served.value.problems == loaded.value.problems


def _holds(node: Any, part: str | int) -> bool:
    indices = range(len(node)) if isinstance(node, list) else ()
    return part in (node if isinstance(node, dict) else indices)


def _load_or_explain(file: Path) -> None:
    try:
        load_job(file)
    except JobFileError as error:
        str(error).encode()
        if not error.problems:
            raise
