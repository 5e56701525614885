"""Generators by name, parameters and seed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flexmarl.contracts.sources import DataSpec
from flexmarl.data.sources import load_records
from flexmarl.runtime.errors import InvalidJobError


def load(uri: str, seed: int = 0, field: str = "spec.data", **fields: Any) -> list[dict[str, Any]]:
    return load_records(DataSpec(uri=uri, **{"size": 3, **fields}), Path(), seed, field=field)


def test_records_carry_what_a_scorer_needs() -> None:
    records = load("gym://chain_sum?min_terms=2&max_terms=2")
    assert [record["index"] for record in records] == [0, 1, 2]
    assert all(record["gym"] == "chain_sum" for record in records)
    assert all(record["metadata"]["num_terms"] == 2 for record in records)
    assert json.loads(json.dumps(records)) == records


def test_the_same_seed_gives_the_same_tasks_and_each_place_its_own() -> None:
    assert load("gym://chain_sum", 1) == load("gym://chain_sum", 1)
    assert load("gym://chain_sum", seed=1) != load("gym://chain_sum", seed=2)
    assert load("gym://chain_sum", field="spec.eval.data") != load("gym://chain_sum")


def test_neighbouring_seeds_share_no_items() -> None:
    uri = "gym://chain_sum?min_terms=5&max_terms=6&min_digits=4"

    def of(seed: int) -> set[str]:
        spec = DataSpec(uri=uri, size=50, seed=seed)
        return {record["question"] for record in load_records(spec, Path(), 0)}

    assert not of(1) & of(2)


def test_a_seed_in_the_uri_is_the_generator_s_own() -> None:
    import reasoning_gym

    wanted = [
        item["question"] for item in reasoning_gym.create_dataset("chain_sum", seed=7, size=3)
    ]
    assert [record["question"] for record in load("gym://chain_sum?seed=7", 5)] == wanted


def test_generators_are_imported_without_what_they_would_draw_with() -> None:
    code = (
        "import sys; from flexmarl.data.reasoning import reasoning_gym\n"
        "gym, drawing = reasoning_gym(), {'matplotlib', 'mpl_toolkits'}\n"
        "made = gym.create_dataset('game_of_life', seed=1, size=1)\n"
        "print(made.score_answer(made[0]['answer'], made[0]), drawing & set(sys.modules))\n"
        "import matplotlib; print(matplotlib.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    score, file = done.stdout.splitlines()
    assert score == "1.0 set()"
    assert file.endswith("__init__.py")  # who wants it later gets it


def test_words_lists_and_plus_signs_pass_as_parameters() -> None:
    records = load('gym://basic_arithmetic?operators=["+"]&max_terms=2&allow_parentheses=false')
    assert all(" - " not in record["question"] for record in records)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("gym://chain_sm", ["spec.data.uri", '"chain_sm"', 'did you mean "chain_sum"?']),
        ("gym://chain_sum?min_term=2", ['no parameter "min_term"', 'did you mean "min_terms"?']),
        ("gym://chain_sum?min_terms=two", ['"min_terms"', '"two"', "int"]),
        ("gym://chain_sum?min_terms=true", ["true", "int"]),
        ("gym://chain_sum?min_terms=9", ["refuses", "max_terms must be >= min_terms"]),
        ("gym://chain_sum?min_terms", ["name=value"]),
        ("gym://chain_sum?seed=1&seed=2", ["twice"]),
        ("gym://chain_sum?size=4", ["spec.data.size"]),
    ],
)
def test_what_a_generator_cannot_take_is_named(uri: str, words: list[str]) -> None:
    with pytest.raises(InvalidJobError) as caught:
        load(uri)
    for word in words:
        assert word in str(caught.value)
