"""Bounded staleness: kept by waiting, for whatever order groups become whole in."""

import itertools
import random
from collections import Counter
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.data.notes import Note
from flexmarl.experience.client import StoredStep
from flexmarl.orchestrator.admission import Place, admits, due, fits, may_take, open_steps
from flexmarl.orchestrator.draws import Draws, lying, restored

DEADLINES = st.lists(st.integers(0, 5), max_size=8)
FREE = st.lists(st.integers(0, 3), min_size=1, max_size=5)


def test_without_staleness_only_the_step_itself_is_open() -> None:
    assert list(open_steps(3, 10, 0)) == [3]
    assert list(open_steps(3, 10, 2)) == [3, 4, 5]
    assert list(open_steps(9, 10, 2)) == [9]
    assert list(open_steps(10, 10, 2)) == []


def test_a_group_starts_once_every_policy_it_needs_is_new_enough() -> None:
    assert admits(3, [3, 3], 0)
    assert not admits(3, [3, 2], 0)
    assert admits(3, [2, 1], 2)
    assert not admits(3, [0], 2)
    assert not admits(0, [None], 5)
    assert admits(7, [], 0)


def test_the_last_step_takes_what_would_be_due_behind_it() -> None:
    assert due(3, 2, 10) == 5
    assert due(9, 2, 10) == 9


@given(DEADLINES, st.integers(0, 2), FREE)
def test_groups_fit_when_some_assignment_to_places_meets_every_deadline(
    deadlines: list[int], first: int, free: list[int]
) -> None:
    places = [first + offset for offset, count in enumerate(free) for _ in range(count)]
    possible = len(places) >= len(deadlines) and all(
        place <= deadline for place, deadline in zip(places, sorted(deadlines), strict=False)
    )
    assert fits(Counter(deadlines), first, free) == possible


@given(st.integers(0, 5), DEADLINES, st.integers(0, 2), FREE)
def test_a_place_is_given_only_if_the_others_still_find_theirs(
    deadline: int, others: list[int], first: int, free: list[int]
) -> None:
    due = Counter(others)
    if may_take(deadline, due, first, free):
        assert free[0] > 0
        assert deadline >= first
        assert fits(due, first, [free[0] - 1, *free[1:]])


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.randoms(use_true_random=False))
def test_partial_rollouts_place_every_draw_once_within_the_bound_in_any_order(
    staleness: int, per_step: int, steps: int, chance: random.Random
) -> None:
    draws = Draws(steps, per_step, staleness)
    version, mishaps = 0, 10
    sampled: dict[int, tuple[int, int]] = {}  # draw -> versions of its oldest and newest token
    trained: dict[Place, int] = {}
    half: dict[Place, int] = {}  # where some policy has a draw that another lost
    kept = ""
    while version < steps:
        gone = {*draws.playing, *draws.whole, *draws.placed.values(), *trained.values()}
        issuable = [
            draw
            for draw in range(steps * per_step)
            if draw not in gone and draws.may_issue(draw, version)
        ]
        if issuable:
            draws.issue(issuable[0], version)
        assert draws.playing or draws.whole, "nothing is played and nothing can start"
        if draws.playing and (not issuable or chance.random() < 0.5):
            draw = chance.choice(sorted(draws.playing))
            if mishaps and chance.random() < 0.1:
                mishaps -= 1
                draws.issue(draw, version)
            else:
                sampled[draw] = chance.randint(draws.playing[draw], version), version
                draws.finish(draw, sampled[draw][0], version)
        while (found := draws.place()) is not None:
            if mishaps and chance.random() < 0.1:  # whoever held it died
                mishaps -= 1
                assert draws.lost(found[1]) == found[0]
        if mishaps and chance.random() < 0.05:  # the orchestrator died, appends were lost
            mishaps -= 1
            lies = draws.placed | {place: draw for draw, place in draws.holes.items()}
            fates = {place: chance.choice(["there", "there", "half", "gone"]) for place in lies}
            stored = {place: draw for place, draw in lies.items() if fates[place] == "there"}
            half |= {place: draw for place, draw in lies.items() if fates[place] == "half"}
            lost = {place: half[place] for place in half.keys() & lies.keys() - stored.keys()}
            draws = restored(kept, Draws(steps, per_step, staleness, version), stored, lost)
            ahead = range(draws.next, steps * per_step)
            owned = [*trained.values(), *draws.placed.values(), *draws.pending, *ahead]
            assert sorted(owned) == list(range(steps * per_step))
        while version < steps and sum(step == version for step, _ in draws.placed) == per_step:
            assert sorted(draws.at(version).values()) == sorted(
                draw for (step, _), draw in draws.placed.items() if step == version
            )
            for (step, index), draw in draws.placed.items():
                if step == version:
                    trained[step, index] = draw
                    oldest, newest = sampled[draw]
                    assert version - staleness <= oldest <= newest <= version
            draws.close(version)
            version += 1
            kept = draws.dump()
    assert half.items() <= trained.items()
    assert sorted(trained.values()) == list(range(steps * per_step))
    assert sorted(trained) == list(itertools.product(range(steps), range(per_step)))


@given(st.integers(0, 2))
def test_falling_back_draws_again_what_was_placed_and_not_trained(ahead: int) -> None:
    draws = Draws(steps=5, per_step=2, staleness=2)
    for draw in range(4 + ahead):
        assert draws.may_issue(draw, 0)
        draws.issue(draw, 0)
    for draw in (3, 1, 2):
        draws.finish(draw, 0, 0)
    while draws.place():
        pass
    assert draws.placed == {(0, 0): 3, (0, 1): 1, (1, 0): 2}
    later = restored(draws.dump(), Draws(5, 2, 2, step=1), {}, {})
    assert later.placed == {}
    assert later.pending == {0, 2} | set(range(4, 4 + ahead))


def test_a_draw_that_is_issued_again_is_due_later_and_makes_way() -> None:
    draws = Draws(steps=3, per_step=2, staleness=1)
    for draw in range(3):
        draws.issue(draw, 0)
    draws.finish(1, 0, 0)
    draws.finish(2, 0, 0)
    assert [draws.place(), draws.place()] == [(1, (0, 0)), (2, (0, 1))]
    draws.close(0)
    for draw in (3, 4):
        draws.issue(draw, 1)
        draws.finish(draw, 1, 1)
    assert [draws.place(), draws.place()] == [(3, (1, 0)), None]  # the last one is for draw 0
    draws.issue(0, 1)
    assert draws.place() == (4, (1, 1))


def test_what_the_store_lost_goes_back_to_its_own_place() -> None:
    draws = Draws(steps=3, per_step=2, staleness=1)
    for draw in range(2):
        draws.issue(draw, 0)
        draws.finish(draw, 0, 0)
    assert [draws.place(), draws.place()] == [(0, (0, 0)), (1, (0, 1))]
    assert draws.lost((0, 0)) == 0
    draws.issue(0, 0)
    draws.issue(2, 0)
    draws.finish(2, 0, 0)
    assert draws.place() == (2, (1, 0))
    draws.finish(0, 0, 0)
    assert draws.place() == (0, (0, 0))


def test_a_draw_that_was_passed_over_is_not_forgotten_by_a_restart() -> None:
    draws = Draws(steps=3, per_step=3, staleness=1)
    draws.issue(2, 0)  # 0 and 1 need policies that are not there yet
    later = restored(draws.dump(), Draws(3, 3, 1), {}, {})
    assert (later.pending, later.next) == ({0, 1, 2}, 3)


def test_what_may_have_been_stored_after_all_is_not_played_into_another_place() -> None:
    draws = Draws(steps=3, per_step=2, staleness=1)
    for draw in range(2):
        draws.issue(draw, 0)
        draws.finish(draw, 0, 0)
    assert [draws.place(), draws.place()] == [(0, (0, 0)), (1, (0, 1))]
    draws.lost((0, 1))  # the worker died on the way
    kept = restored(draws.dump(), Draws(3, 2, 1), {(0, 0): 0, (0, 1): 1}, {})
    assert (kept.placed, kept.pending) == ({(0, 0): 0, (0, 1): 1}, set())
    gone = restored(draws.dump(), Draws(3, 2, 1), {(0, 0): 0}, {})
    assert (gone.placed, gone.pending) == ({(0, 0): 0}, {1})
    draws.issue(1, 0)
    draws.close(0)  # a trainer had it
    assert draws.known() == set()
    assert draws.may_issue(2, 1)


def test_what_lies_in_the_store_outranks_what_was_kept_when_the_step_began() -> None:
    draws = Draws(steps=3, per_step=2, staleness=1)
    for draw in range(3):
        draws.issue(draw, 0)
    draws.finish(2, 0, 0)
    assert draws.place() == (2, (0, 0))
    kept = draws.dump()
    then = restored(kept, Draws(3, 2, 1), {(0, 0): 0, (0, 1): 4}, {(1, 0): 1})
    assert then.placed == {(0, 0): 0, (0, 1): 4}
    assert (then.next, then.pending, then.holes) == (5, {1, 2, 3}, {1: (1, 0)})
    silent: Mapping[Place, int | None] = {(0, 0): None, (1, 1): None}  # as an older version wrote
    assert restored(kept, Draws(3, 2, 1), silent, {}).placed == {(0, 0): 2}


def test_which_draw_lies_where_is_read_from_the_notes() -> None:
    notes = {0: Note(drawn=(2, 1)), 1: Note({"a": (0.5, 2)}), 3: Note(drawn=(1, 0))}
    raw = {index: note.encoded() for index, note in notes.items()}
    found = StoredStep(frozenset({0, 1, 2}), closed=False, notes=raw, full=None)
    there, lost = lying({2: found}, per_step=4)
    assert there == {(2, 0): 9, (2, 1): None, (2, 2): None}
    assert lost == {(2, 3): 4}


def test_a_draw_that_is_given_up_is_not_issued_again() -> None:
    draws = Draws(steps=3, per_step=2, staleness=1)
    draws.issue(0, 0)
    draws.finish(0, 0, 0)
    assert draws.place() == (0, (0, 0))
    draws.lost((0, 0))
    draws.finish(0, 0, 0)
    assert draws.place() == (0, (0, 0))
    assert restored(draws.dump(), Draws(3, 2, 1), {(0, 0): 0}, {}).pending == set()
