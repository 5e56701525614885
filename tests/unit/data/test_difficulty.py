from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.data.difficulty import Posterior, choose, posteriors


def test_evidence_adds_up_and_fades() -> None:
    known = posteriors([("a", 0.25, 8), ("b", 1.0, 4), ("a", 1.0, 8)], discount=0.5)
    assert known == {"a": Posterior(0.5 * 2 + 8, 0.5 * 6), "b": Posterior(4, 0)}


def test_a_group_that_nobody_could_score_says_nothing() -> None:
    assert posteriors([("a", 0.0, 0)], discount=0.5) == {}


def test_tasks_of_the_wanted_difficulty_are_preferred_but_not_alone() -> None:
    known = {
        "easy": Posterior(solved=40, failed=0),
        "right": Posterior(solved=20, failed=20),
        "hard": Posterior(solved=0, failed=40),
    }
    names = ["easy", "right", "hard", "unknown"]
    picked = Counter(names[choose(names, known, 0.5, seed)] for seed in range(400))
    assert picked["right"] > 200
    assert picked["unknown"] > 20, "what nobody tried is explored"
    assert picked["easy"] + picked["hard"] < 20


@pytest.mark.parametrize(("target", "name"), [(0.1, "hard"), (0.9, "easy")])
def test_the_target_is_a_share_of_solved_episodes(target: float, name: str) -> None:
    known = {"easy": Posterior(solved=40, failed=4), "hard": Posterior(solved=4, failed=40)}
    names = ["easy", "hard"]
    assert {names[choose(names, known, target, seed)] for seed in range(50)} == {name}


@given(st.integers(0, 2**63), st.floats(0.01, 0.99))
def test_the_choice_is_a_function_of_its_arguments(seed: int, target: float) -> None:
    names = ["a", "b", "c"]
    known = {"a": Posterior(1, 2)}
    assert choose(names, known, target, seed) == choose(names, known, target, seed)
