"""How long the store holds up a step."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from flexmarl.trainer.ahead import stalled

TIMES = st.floats(0, 10, allow_nan=False).map(lambda number: round(number, 3))


def test_what_a_waiting_trainer_gets_late_is_the_stores() -> None:
    assert stalled(0.0, asked=1.0, ready=3.0, got=3.5, waited=True) == 0.5


def test_what_the_store_took_before_is_made_up_for_by_waiting_for_what_was_not_there() -> None:
    assert stalled(7.0, asked=1.0, ready=3.0, got=3.5, waited=True) == 0.5


def test_what_comes_while_the_trainer_computes_costs_nothing() -> None:
    assert stalled(0.25, asked=4.0, ready=3.0, got=4.0, waited=True) == 0.25


def test_answers_that_were_there_at_once_add_up() -> None:
    assert stalled(0.5, asked=2.0, ready=1.5, got=2.5, waited=False) == 1.0


@given(st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=8))
def test_a_step_is_never_held_up_for_longer_than_its_trainer_waited(
    gaps: list[tuple[float, float, float]],
) -> None:
    """Each answer: the trainer computes, then waits; the store answers some time after it had
    something to say."""
    now = waiting = held_up = 0.0
    for computing, until_ready, until_got in gaps:
        began, asked = now, now + computing
        ready = began + until_ready
        got = max(asked, ready + until_got)
        held_up = stalled(held_up, asked=asked, ready=ready, got=got, waited=until_ready > 0)
        waiting += got - asked
        now = got
        assert -1e-9 <= held_up <= waiting + 1e-9


@given(st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=8))
def test_a_step_would_have_gone_on_by_so_much_sooner_and_no_more(
    gaps: list[tuple[float, float, float]],
) -> None:
    """Against the same step with a store that answers at the moment at which it has something."""
    arrivals, now, held_up, ideal = list[float](), 0.0, 0.0, 0.0
    for computing, until_ready, until_got in gaps:
        asked, ready = now + computing, now + until_ready
        arrivals.append(ready)
        got = max(asked, ready + until_got)
        held_up = stalled(held_up, asked=asked, ready=ready, got=got, waited=until_ready > 0)
        ideal = max(ideal + computing, ready if until_ready else ideal)
        now = got
    assert all(one <= other for one, other in pairwise(arrivals))
    assert now - ideal <= held_up + 1e-9
