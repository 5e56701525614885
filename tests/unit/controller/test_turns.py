"""Whose turn it is to be asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flexmarl.controller.cache import Key
from flexmarl.controller.turns import turn

JOBS = [Key("research", str(number)) for number in range(30)]


def test_all_are_asked_each_round_while_they_are_few() -> None:
    assert turn({}, JOBS[:5], (), 5) == JOBS[:5]


@given(st.integers(1, 40), st.integers(1, 30))
def test_nobody_waits_for_more_rounds_than_all_need(most: int, jobs: int) -> None:
    asked: dict[Key, float] = {}
    rounds = -(-jobs // most)
    for round_ in range(3 * rounds):
        for key in turn(asked, JOBS[:jobs], (), most):
            assert round_ - asked.get(key, -1) <= rounds
            asked[key] = round_
    assert len(asked) == jobs


@given(st.sets(st.sampled_from(JOBS)), st.sets(st.sampled_from(JOBS)), st.integers(1, 40))
def test_those_in_a_hurry_come_first_and_no_more_than_so_many(
    ready: set[Key], hurried: set[Key], most: int
) -> None:
    found = turn(dict.fromkeys(hurried, 1), ready, hurried, most)
    assert len(found) == len({*found}) == min(most, len(ready))
    assert {*found} <= ready
    assert sum(key in hurried for key in found) == min(most, len(ready & hurried))
