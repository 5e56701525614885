"""How long the store holds up a step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.trainer.hindrance import Account, Arrival, Work, done_without

TIMES = st.integers(0, 50).map(lambda number: number / 8)  # sums of them are exact


def test_work_that_waited_for_the_store_would_have_begun_when_its_group_was_played() -> None:
    account = Account(0.0)
    account.arrived([1.0], 0.5)  # came at 3
    account.worked([0], 2.0)
    assert account.hindered(5.5) == 2.0


def test_what_comes_late_costs_nothing_while_there_is_other_work() -> None:
    account = Account(0.0)
    account.arrived([0.0], 0.0)
    account.worked([0], 4.0)
    account.arrived([1.0], 0.0)  # came at 3, was needed at 4
    account.worked([1], 1.0)
    assert account.hindered(5.0) == 0.0


def test_what_the_store_took_before_is_made_up_for_by_waiting_for_what_was_not_played() -> None:
    account = Account(0.0)
    account.arrived([0.0], 1.0)  # came at 2
    account.arrived([5.0], 1.0)  # came at 5.5
    account.worked([0, 1], 1.0)
    assert account.hindered(7.5) == 0.5


def test_groups_that_came_together_could_have_been_prepared_one_by_one() -> None:
    account = Account(0.0)
    account.arrived([1.0, 2.0, 9.0], 3.0)  # all at 9.5
    account.worked([0, 1, 2], 1.0)
    assert account.hindered(13.5) == pytest.approx(2.5)


def test_what_needs_all_groups_waits_for_the_last_one_played() -> None:
    account = Account(0.0)
    account.arrived([1.0], 0.0, together=True)
    account.arrived([4.0], 2.0, together=True)  # came at 5
    account.worked([], 1.0)
    assert account.hindered(8.0) == 1.0


def test_groups_that_were_played_before_the_step_were_there_at_its_begin() -> None:
    account = Account(10.0)
    account.arrived([2.0, 3.0], 1.0)
    account.worked([0, 1], 1.0)
    assert account.hindered(12.25) == 0.25


def test_replayed_groups_are_waited_for_by_nobody() -> None:
    account = Account(0.0)
    account.worked([-1], 1.0)
    assert account.hindered(1.0) == 0.0


@dataclass(frozen=True)
class Answer:
    """Of the store: groups that it took so long to hand out, once the last of them was played."""

    played: tuple[float, ...]
    late: float
    preparing: float
    folding: float


ANSWERS = st.lists(
    st.builds(
        Answer, st.lists(TIMES, min_size=1, max_size=3).map(tuple), TIMES, TIMES, TIMES
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip


def hindered(answers: list[Answer], began: float = 0.0) -> tuple[float, float]:
    """By the store, and how long all of it lasted: a trainer that folds what it has got."""
    account, now, number = Account(began), began, 0
    for answer in answers:
        now = max(now, began + max(answer.played) + answer.late) + answer.preparing
        account.arrived([began + moment for moment in answer.played], answer.preparing)
        needs = range(number, number + len(answer.played))
        account.worked(needs, answer.folding)
        number, now = needs.stop, now + answer.folding
    return account.hindered(now), now - began


@given(ANSWERS)
def test_a_store_that_takes_no_time_holds_up_nobody(answers: list[Answer]) -> None:
    """Groups come one by one, in the order in which they were played."""
    moments = sorted(moment for answer in answers for moment in answer.played)
    alone = [replace(answers[0], played=(moment,), late=0.0) for moment in moments]
    assert hindered(alone)[0] == 0.0


@given(ANSWERS)
def test_a_step_is_held_up_for_no_longer_than_it_lasts_beyond_its_work(
    answers: list[Answer],
) -> None:
    seconds, lasted = hindered(answers)
    work = sum(answer.preparing + answer.folding for answer in answers)
    assert 0 <= seconds <= lasted - work + 1e-9


@given(ANSWERS, TIMES)
def test_what_comes_later_holds_up_no_less(answers: list[Answer], more: float) -> None:
    later = [replace(answer, late=answer.late + more) for answer in answers]
    assert hindered(later)[0] >= hindered(answers)[0] - 1e-9


@given(ANSWERS, TIMES)
def test_only_durations_matter(answers: list[Answer], began: float) -> None:
    assert hindered(answers, began)[0] == pytest.approx(hindered(answers)[0], abs=1e-9)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=8), TIMES)
def test_without_the_store_nothing_begins_before_its_groups_are_played(
    groups: list[tuple[float, float]], folding: float
) -> None:
    arrivals = [Arrival(*each) for each in groups]
    done = done_without(0.0, arrivals, [Work(frozenset(range(len(groups))), folding)])
    assert done >= max(arrival.played + arrival.seconds for arrival in arrivals) + folding
    assert done >= sum(arrival.seconds for arrival in arrivals) + folding
