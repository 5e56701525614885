"""How a step's groups, arriving in any order, come into its updates."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.trainer.accumulate import StepOrder
from flexmarl.trainer.batch import Prepared

Taken = list[list[list[int]]]
"""Of each update the folds, of each fold the names of its groups: replayed ones are 100 and on."""


def play(
    order: StepOrder, arrivals: list[int], replayed: int, *, overlap: bool, groups: int
) -> Taken:
    updates: Taken = [[]]

    def work_off() -> None:
        while True:
            if chosen := order.take():
                assert overlap or not order.missing
                updates[-1].append([group.excluded for group in chosen])
            elif order.ready:
                order.advance()
                updates.append([])
            else:
                return

    for number in range(replayed):
        order.add_replayed(number, Prepared((), 100 + number))
    work_off()
    for arrived, index in enumerate(arrivals):
        assert not order.done
        assert order.missing == groups - arrived
        assert 1 <= order.wanted <= order.missing
        order.add(index, Prepared((), index))
        work_off()
    assert order.done
    assert order.wanted == 0
    assert not updates.pop()
    return updates


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(0, 9),
    st.integers(1, 4),
    st.tuples(st.booleans(), st.booleans()),
    st.randoms(use_true_random=False),
)
def test_every_group_is_in_the_update_of_its_index_whatever_the_order_of_arrival(
    sizes: tuple[int, int], replayed: int, micro: int, modes: tuple[bool, bool], random: Random
) -> None:
    (own, count), (deterministic, overlap) = sizes, modes
    groups = own * count

    def run(arrivals: list[int], overlap: bool) -> Taken:
        order = StepOrder(
            groups,
            replayed,
            count,
            micro,
            deterministic=deterministic,
            overlap=overlap,
            tokens=1,
        )
        return play(order, arrivals, replayed, overlap=overlap, groups=groups)

    arrivals = list(range(groups))
    random.shuffle(arrivals)
    taken = run(arrivals, overlap)
    parts = [sorted(name for fold in part for name in fold) for part in taken]
    assert sorted(name for part in parts for name in part) == [
        *range(groups),
        *range(100, 100 + replayed),
    ]
    for number, part in enumerate(parts):
        mine = range(number * own, (number + 1) * own)
        assert part == [*mine, *range(100 + number, 100 + replayed, count)]
    if deterministic:
        assert taken == run(list(range(groups)), not overlap)
        assert all(len(fold) == micro for part in taken for fold in part[:-1])


def test_replayed_groups_are_folded_before_anything_was_played() -> None:
    order = StepOrder(2, 2, 2, 1, deterministic=True, overlap=True, tokens=1)
    order.add_replayed(0, Prepared((), 100))
    assert [group.excluded for group in order.take()] == [100]
    assert not order.ready


def test_updates_have_equally_many_groups() -> None:
    with pytest.raises(ValueError, match="5 groups do not split into 2"):
        StepOrder(5, 0, 2, 1, deterministic=True, overlap=True, tokens=1)
