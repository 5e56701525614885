from __future__ import annotations

import numpy as np
import pytest

from flexmarl.experience.samples import GroupId, PolicySamples, Sequence
from flexmarl.rollout.held import HeldGroups
from flexmarl.runtime.errors import FencedError, FullError, InvalidRequestError, NotFoundError


def samples(group: GroupId, tokens: int = 4) -> tuple[PolicySamples, ...]:
    ids, mask = np.zeros(tokens, np.int32), np.ones(tokens, np.uint8)
    name = group.sequence_id(2, "a", 1)
    one = Sequence(name, "a", 2, ids, mask, ids.astype(np.float32), ())
    return PolicySamples("p", 3, (one,)), PolicySamples("q", group.step, ())


DRAW, PLACE, OTHER = GroupId(1, 4, 7), GroupId(1, 6, 0), GroupId(1, 6, 1)


@pytest.fixture
def held() -> HeldGroups:
    made = HeldGroups()
    with made.room(DRAW):
        made.keep(DRAW, "task", samples(DRAW))
    return made


def test_sequences_go_by_the_name_of_their_place(held: HeldGroups) -> None:
    claimed = held.claim(DRAW, PLACE)
    assert claimed is not None
    acted, empty = claimed.at(DRAW, PLACE)
    assert [sequence.id for sequence in acted.sequences] == ["1/6/0/2/a/1"]
    assert (acted.version, empty.version, empty.sequences) == (3, 6, ())
    assert claimed.task_id == "task"


def test_a_placed_group_makes_room_and_is_known(held: HeldGroups) -> None:
    assert held.claim(DRAW, PLACE) is not None
    held.placed(DRAW, PLACE)
    assert len(held) == 0
    assert held.claim(DRAW, PLACE) is None


def test_a_group_that_may_be_stored_in_one_place_goes_to_no_other(held: HeldGroups) -> None:
    held.claim(DRAW, PLACE)  # the answer got lost
    with pytest.raises(InvalidRequestError, match="placed at 1/6/0, not at 1/6/1"):
        held.claim(DRAW, OTHER)
    assert held.claim(DRAW, PLACE) is not None
    held.placed(DRAW, PLACE)
    with pytest.raises(InvalidRequestError, match="placed at 1/6/0"):
        held.claim(DRAW, OTHER)


def test_a_group_refused_in_one_place_may_go_to_another(held: HeldGroups) -> None:
    held.claim(DRAW, PLACE)
    held.release(DRAW)
    assert held.claim(DRAW, OTHER) is not None


def test_what_is_not_held_is_not_found(held: HeldGroups) -> None:
    with pytest.raises(NotFoundError, match="1/4/8"):
        held.claim(GroupId(1, 4, 8), PLACE)


def test_a_newer_incarnation_ends_the_older_ones(held: HeldGroups) -> None:
    held.meet(2)
    assert len(held) == 0
    with pytest.raises(FencedError):
        held.claim(DRAW, PLACE)
    with pytest.raises(FencedError):
        held.keep(DRAW, "task", samples(DRAW))
    with pytest.raises(FencedError), held.room(DRAW):
        pass
    with pytest.raises(NotFoundError):
        held.claim(GroupId(2, 4, 7), GroupId(2, 6, 0))


def test_what_no_step_takes_any_more_is_forgotten(held: HeldGroups) -> None:
    untouched = (PolicySamples("p", 6, ()),)
    held.keep(OTHER, "task", untouched, since=5)
    held.forget_before(3)
    assert len(held) == 2
    held.forget_before(4)  # the oldest token of DRAW is of version 3
    assert len(held) == 1
    with pytest.raises(NotFoundError):
        held.claim(DRAW, PLACE)
    held.forget_before(6)
    assert len(held) == 0


def test_after_falling_back_older_versions_are_held_again(held: HeldGroups) -> None:
    held.forget_before(9)
    held.meet(2)
    again = GroupId(2, 4, 7)
    held.keep(again, "task", samples(again))
    held.forget_before(4)
    assert len(held) == 0


def test_a_place_of_another_incarnation_is_refused(held: HeldGroups) -> None:
    with pytest.raises(InvalidRequestError, match="no place at 2/6/0"):
        held.claim(DRAW, GroupId(2, 6, 0))


def test_a_group_played_again_takes_the_place_of_the_earlier_one(held: HeldGroups) -> None:
    held.claim(DRAW, PLACE)
    held.keep(DRAW, "another", samples(DRAW))
    claimed = held.claim(DRAW, OTHER)
    assert claimed is not None
    assert claimed.task_id == "another"
    assert len(held) == 1


def test_groups_being_played_count_towards_the_bound() -> None:
    held = HeldGroups(most_groups=2)
    held.keep(DRAW, "task", samples(DRAW))
    with (
        held.room(GroupId(1, 4, 8)),
        pytest.raises(FullError, match="2 groups"),
        held.room(GroupId(1, 4, 9)),
    ):
        pass
    with held.room(GroupId(1, 4, 9)):
        pass


def test_bytes_are_bounded_and_come_back() -> None:
    held = HeldGroups(most_bytes=9 * 1000)
    for _ in range(3):  # the same again is no more
        held.keep(DRAW, "task", samples(DRAW, tokens=999))
    with held.room(OTHER):
        held.keep(OTHER, "task", samples(OTHER, tokens=1))
    with pytest.raises(FullError), held.room(GroupId(1, 4, 9)):
        pass
    held.placed(OTHER, PLACE)
    with held.room(GroupId(1, 4, 9)):
        pass
