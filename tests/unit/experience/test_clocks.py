"""What another clock showed: never further off than half of the quickest exchange took."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.experience.clocks import MOST_EXCHANGES, REMEMBERED_SECONDS, Exchange, OtherClock

SECONDS = st.floats(0, 5)


def exchange(sent: float, ahead: float, there: float, answering: float, back: float) -> Exchange:
    """With a clock that is so far ahead."""
    received = sent + there + ahead
    answered = received + answering
    return Exchange(sent, received, answered, answered - ahead + back)


@given(
    st.floats(-1e6, 1e6), st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=10)
)
def test_it_is_off_by_half_of_the_quickest_way_at_most(
    ahead: float, ways: list[tuple[float, float, float]]
) -> None:
    clock = OtherClock()
    for number, (there, answering, back) in enumerate(ways):
        clock.met(7, exchange(float(number), ahead, there, answering, back))
    quickest = min(there + back for there, _, back in ways)
    assert clock.theirs(3.0) == pytest.approx(3.0 + ahead, abs=quickest / 2 + 1e-6)
    assert clock.ours(clock.theirs(3.0)) == pytest.approx(3.0, abs=1e-6)


def test_without_an_exchange_nothing_is_known() -> None:
    assert math.isnan(OtherClock().theirs(1.0))
    assert OtherClock().id == 0


def test_a_process_that_was_started_again_has_another_clock() -> None:
    clock = OtherClock()
    clock.met(1, exchange(0.0, 1000.0, 0.0, 0.0, 0.0))
    clock.met(2, exchange(1.0, -50.0, 0.5, 0.0, 0.5))
    assert (clock.id, clock.theirs(2.0)) == (2, -48.0)


def test_quick_exchanges_are_forgotten_in_time_as_clocks_drift() -> None:
    clock = OtherClock()
    clock.met(1, exchange(0.0, 10.0, 0.0, 0.0, 0.0))
    clock.met(1, exchange(REMEMBERED_SECONDS / 2, 11.0, 1.0, 0.0, 1.0))
    assert clock.theirs(0.0) == 10.0
    clock.met(1, exchange(REMEMBERED_SECONDS + 1, 11.0, 1.0, 0.0, 1.0))
    assert clock.theirs(0.0) == 11.0


def test_many_exchanges_take_no_more_room() -> None:
    clock = OtherClock()
    for number in range(2 * MOST_EXCHANGES):
        clock.met(1, exchange(number * 1e-4, 0.0, 1.0, 0.0, 1.0))
    assert len(clock._exchanges) == MOST_EXCHANGES
