from collections import Counter
from collections.abc import Sequence as Rows
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.experience.groups import columns_of

from flexmarl.contracts.policy import Algorithm
from flexmarl.experience.columns import Columns
from flexmarl.experience.samples import (
    GroupId,
    PolicySamples,
    Sequence,
    TurnSpan,
    VersionSpan,
)
from flexmarl.trainer import batch as batches
from flexmarl.trainer.accumulate import FoldOrder, StepTotals, Sums
from flexmarl.trainer.batch import Deviations, Prepared, pad, plan


def sequence(
    episode: int,
    reward: float | None,
    turns: list[tuple[int, int]],
    *,
    agent: str = "solver",
    turn_rewards: list[float | None] | None = None,
    temperature: float = 1.0,
    seq: int = 0,
) -> Sequence:
    length = turns[-1][1] + 2
    mask = np.zeros(length, np.uint8)
    spans = []
    for (start, end), own in zip(turns, turn_rewards or [None] * len(turns), strict=True):
        mask[start:end] = 1
        spans.append(
            TurnSpan(start, end, (VersionSpan(0, 0, end - start),), "stop", temperature, own)
        )
    return Sequence(
        id=f"1/0/0/{episode}/{agent}/{seq}",
        agent=agent,
        episode=episode,
        token_ids=np.arange(100 * episode, 100 * episode + length, dtype=np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -0.5, 0).astype(np.float32),
        turns=tuple(spans),
        reward=reward,
    )


def columns(rows: Rows[Sequence]) -> Columns:
    return columns_of(PolicySamples("solver", 0, tuple(rows)), GroupId(1, 0, 0))


def prepare(
    rows: Rows[Sequence],
    algorithm: Algorithm,
    deviations: Deviations | None = None,
    *,
    comparable: bool = True,
) -> Prepared:
    return batches.prepare(columns(rows), algorithm, deviations, comparable=comparable)


def step_deviations(groups: Rows[Rows[Sequence]], algorithm: Algorithm) -> Deviations:
    return batches.step_deviations(map(columns, groups), algorithm)


def test_only_sampled_tokens_are_trained_and_the_tail_is_cut() -> None:
    prepared = prepare(
        [sequence(0, 1, [(2, 4), (7, 8)]), sequence(1, 0, [(3, 5)])], Algorithm.DR_GRPO
    )
    first, second = prepared.examples
    assert first.positions.tolist() == [2, 3, 7]
    assert first.advantages.tolist() == [0.5] * 3
    assert first.token_ids.tolist() == list(range(8))
    assert second.advantages.tolist() == [-0.5] * 2
    assert prepared.tokens == 5


def test_agents_are_normalised_apart() -> None:
    prepared = prepare(
        [
            sequence(0, 1, [(1, 2)], agent="a"),
            sequence(1, 0, [(1, 2)], agent="a"),
            sequence(0, 5, [(1, 2)], agent="b"),
            sequence(1, 5, [(1, 2)], agent="b"),
        ],
        Algorithm.DR_GRPO,
    )
    assert [e.advantages.tolist() for e in prepared.examples] == [[0.5], [-0.5], [0], [0]]
    assert [e.live for e in prepared.examples] == [True, True, False, False]


def test_an_episode_counts_once_however_many_sequences_it_has() -> None:
    """Turns [2, 2, 3] of a trajectory: the mean is over episodes, never over rows."""
    prepared = prepare(
        [
            sequence(0, 1, [(1, 2)], seq=0),
            sequence(0, 1, [(1, 2)], seq=1),
            sequence(0, 1, [(1, 2)], seq=2),
            sequence(1, 0, [(1, 2)]),
        ],
        Algorithm.DR_GRPO,
    )
    assert [e.advantages.tolist() for e in prepared.examples] == [[0.5], [0.5], [0.5], [-0.5]]


def test_arrival_order_does_not_mix_groups() -> None:
    rows = [sequence(n, float(n % 3), [(1, 3)]) for n in range(6)]
    expected = {e.id: e.advantages.tolist() for e in prepare(rows, Algorithm.GRPO).examples}
    Random(3).shuffle(rows)
    assert {e.id: e.advantages.tolist() for e in prepare(rows, Algorithm.GRPO).examples} == expected


def test_unscorable_sequences_are_excluded_and_counted() -> None:
    prepared = prepare(
        [
            sequence(0, None, [(1, 2)]),
            sequence(1, 1, [(1, 2)]),
            sequence(2, 0, [(1, 2)]),
        ],
        Algorithm.DR_GRPO,
    )
    assert prepared.excluded == 1
    assert [e.advantages.tolist() for e in prepared.examples] == [[0.5], [-0.5]]


def test_a_turn_with_its_own_reward_is_judged_by_it() -> None:
    """Turn rewards [0, 1, 0] against [0, 0, 0]; the outcome still judges the turn without one."""
    prepared = prepare(
        [
            sequence(0, 1, [(1, 2), (2, 3), (3, 4), (5, 6)], turn_rewards=[0, 1, 0, None]),
            sequence(1, 0, [(1, 2), (2, 3), (3, 4), (5, 6)], turn_rewards=[0, 0, 0, None]),
        ],
        Algorithm.DR_GRPO,
    )
    sixth = 1 / 6
    assert prepared.examples[0].advantages.tolist() == pytest.approx(
        [-sixth, 1 - sixth, -sixth, 0.5]
    )
    assert prepared.examples[1].advantages.tolist() == pytest.approx([-sixth, -sixth, -sixth, -0.5])


def test_own_rewards_train_where_the_outcome_is_unscorable() -> None:
    prepared = prepare(
        [
            sequence(0, None, [(1, 2), (3, 4)], turn_rewards=[1, None]),
            sequence(1, None, [(1, 2), (3, 4)], turn_rewards=[0, None]),
        ],
        Algorithm.DR_GRPO,
    )
    assert [e.positions.tolist() for e in prepared.examples] == [[1], [1]]
    assert prepared.excluded == 0


def test_tokens_of_truncated_and_greedy_turns_are_not_comparable() -> None:
    """Turns, not agents: a call may ask for another sampling than the job file."""
    both = sequence(0, 1, [(1, 3), (4, 6)], temperature=0.6)
    cut = replace(both.turns[1], truncated=True)
    rows = [
        replace(both, turns=(both.turns[0], cut)),
        sequence(1, 1, [(1, 2)], temperature=0.0),
    ]
    nucleus, greedy = prepare(rows, Algorithm.GRPO).examples
    assert nucleus.comparable.tolist() == [True, True, False, False]
    assert nucleus.temperatures.tolist() == pytest.approx([0.6] * 4)
    assert greedy.comparable.tolist() == [False]
    assert greedy.temperatures.tolist() == [1]
    for example in prepare(rows, Algorithm.GRPO, comparable=False).examples:
        assert not example.comparable.any()


def test_every_token_knows_the_version_that_sampled_it() -> None:
    first = sequence(0, 1, [(1, 4), (6, 8)])
    resumed = replace(first.turns[0], versions=(VersionSpan(3, 0, 1), VersionSpan(4, 1, 3)))
    later = replace(first.turns[1], versions=(VersionSpan(5, 0, 2),))
    rows = [replace(first, turns=(resumed, later)), sequence(1, 0, [(1, 2)])]
    examples = prepare(rows, Algorithm.DR_GRPO).examples
    assert [example.versions.tolist() for example in examples] == [[3, 4, 4, 5, 5], [0]]
    assert pad(examples).versions.tolist() == [3, 4, 4, 5, 5, 0]


def test_whitening_is_over_the_episodes_of_the_step_and_per_agent() -> None:
    groups = [
        [
            sequence(0, 1, [(1, 9)]),  # a long episode counts as much as a short one
            sequence(1, 0, [(1, 2)]),
            sequence(0, 10, [(1, 2)], agent="b"),
            sequence(1, 30, [(1, 2)], agent="b"),
        ],
        [sequence(0, 4, [(1, 2)]), sequence(1, 0, [(1, 2)]), sequence(2, None, [(1, 2)])],
        [sequence(0, 7, [(1, 2)]), sequence(1, 7, [(1, 2)])],  # no contrast
    ]
    deviations = step_deviations(groups, Algorithm.REINFORCE_PP)
    # Advantages of the solver: .5, -.5, 2, -2, 0, 0; of b: -10, 10.
    assert deviations == {
        ("solver", False): pytest.approx((8.5 / 6) ** 0.5),
        ("b", False): pytest.approx(10),
    }
    assert deviations == step_deviations(groups[::-1], Algorithm.REINFORCE_PP)
    values = [
        [set(example.advantages.tolist()) for example in prepared.examples]
        for prepared in (prepare(g, Algorithm.REINFORCE_PP, deviations) for g in groups)
    ]
    scale = (8.5 / 6) ** -0.5
    assert all(len(value) == 1 for group in values for value in group)  # every token of a row
    assert [[value.pop() for value in group] for group in values] == [
        pytest.approx([0.5 * scale, -0.5 * scale, -1, 1]),
        pytest.approx([2 * scale, -2 * scale]),
        [0, 0],
    ]


def test_turns_with_their_own_rewards_are_whitened_apart() -> None:
    rows = [
        sequence(0, 1, [(1, 2), (3, 4)], turn_rewards=[40, None]),
        sequence(1, 0, [(1, 2), (3, 4)], turn_rewards=[0, None]),
    ]
    deviations = step_deviations([rows], Algorithm.REINFORCE_PP)
    assert deviations == {("solver", False): 0.5, ("solver", True): 20}
    first, second = prepare(rows, Algorithm.REINFORCE_PP, deviations).examples
    assert first.advantages.tolist() == [1, 1]
    assert second.advantages.tolist() == [-1, -1]


def test_padded_batch_points_at_the_states_that_predict() -> None:
    examples = prepare(
        [sequence(1, 1, [(2, 4)]), sequence(2, 0, [(1, 2), (5, 6)])], Algorithm.DR_GRPO
    ).examples
    batch = pad(examples, pad_id=9)
    assert batch.input_ids.tolist() == [[100, 101, 102, 9, 9], [200, 201, 202, 203, 204]]
    assert batch.targets.tolist() == [102, 103, 201, 205]
    predicting = batch.input_ids.reshape(-1)[batch.flat]
    assert (batch.targets - predicting).tolist() == [1, 1, 1, 1]
    assert batch.rows.tolist() == [0, 0, 1, 1]


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 500))
def test_plan_hands_out_every_item_once_within_the_bound(lengths: list[int], bound: int) -> None:
    chosen = plan(lengths, bound)
    assert Counter(i for batch in chosen for i in batch) == Counter(range(len(lengths)))
    for batch in chosen:
        longest = max(lengths[i] for i in batch)
        assert len(batch) == 1 or longest * len(batch) <= bound
        padded = longest * len(batch)
        assert padded <= sum(2 * lengths[i] + 16 for i in batch)


GROUP = prepare([sequence(0, 1, [(1, 4)]), sequence(1, 0, [(1, 4)])], Algorithm.GRPO)


@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.tuples(st.booleans(), st.booleans()),
    st.integers(1, 60),
    st.randoms(use_true_random=False),
)
def test_every_group_is_folded_once_whatever_the_order_of_arrival(
    groups: int, micro: int, modes: tuple[bool, bool], tokens: int, random: Random
) -> None:
    deterministic, overlap = modes

    def run(order: list[int], overlap: bool) -> list[list[int]]:
        fold = FoldOrder(groups, micro, deterministic=deterministic, overlap=overlap, tokens=tokens)
        content = {index: Prepared(GROUP.examples, index) for index in order}
        taken = []
        for index in order:
            fold.add(index, content[index])
            while chosen := fold.take():
                assert overlap or not fold.missing
                taken.append([group.excluded for group in chosen])
        assert fold.done
        return taken

    order = list(range(groups))
    random.shuffle(order)
    taken = run(order, overlap)
    assert sorted(i for batch in taken for i in batch) == list(range(groups))
    if deterministic:
        assert taken == run(list(range(groups)), not overlap)


def test_small_folds_wait_for_more() -> None:
    fold = FoldOrder(4, 1, deterministic=False, overlap=True, tokens=10)
    fold.add(2, GROUP)  # 8 tokens
    assert fold.take() == []
    fold.add(0, GROUP)
    assert len(fold.take()) == 2
    fold.add(1, GROUP)
    assert fold.take() == []
    fold.add(3, GROUP)
    assert len(fold.take()) == 2
    assert fold.done


def test_of_what_is_missing_as_much_is_wanted_as_the_next_fold_needs() -> None:
    fold = FoldOrder(9, 2, deterministic=False, overlap=True, tokens=30)
    wanted = []
    for index in range(9):
        wanted.append(fold.wanted)
        fold.add(index, GROUP)  # 8 tokens
        fold.take()
    # Of the first nothing is known; a fold takes four; the last is all that is left.
    assert wanted == [9, 2, 1, 1, 3, 2, 1, 1, 1]


def test_in_order_those_of_the_next_micro_batch_are_wanted() -> None:
    fold = FoldOrder(7, 3, deterministic=True, overlap=True, tokens=1)
    wanted = [fold.wanted]
    for index in (4, 0, 2, 5, 1, 6, 3):
        fold.add(index, GROUP)
        while fold.take():
            pass
        wanted.append(fold.wanted)
    # Of [0, 3) as many as lack, then of [3, 6), of [6, 7).
    assert wanted == [7, 3, 2, 1, 1, 1, 1, 0]


def test_the_last_groups_are_folded_with_others_when_they_are_no_fold_of_their_own() -> None:
    fold = FoldOrder(3, 1, deterministic=False, overlap=True, tokens=10)
    for index in range(3):
        fold.add(index, GROUP)
    assert len(fold.take()) == 3
    assert fold.done


def test_losses_are_divided_once_by_the_global_count() -> None:
    """2.0 on 100 tokens and 0.5 on 900 are 0.65, however they are split."""
    for parts in ([100, 900], [50, 50, 300, 600]):
        totals = StepTotals()
        seen = 0
        for tokens in parts:
            loss = tokens * (2.0 if seen < 100 else 0.5)
            seen += tokens
            totals.add([], Sums(tokens=tokens, loss=loss))
        assert totals.metrics()["loss"] == pytest.approx(0.65, rel=1e-12)


def test_dead_groups_can_be_left_out_of_the_denominator() -> None:
    dead = prepare([sequence(0, 1, [(1, 4)]), sequence(1, 1, [(1, 4)])], Algorithm.GRPO)
    for exclude, left in ((False, 12), (True, 6)):
        totals = StepTotals(exclude)
        totals.add([GROUP, dead], Sums(tokens=12, loss=3.0))
        assert totals.denominator == left
        metrics = totals.metrics()
        assert (metrics["loss"], metrics["loss_tokens"]) == (3 / left, left)
        assert (metrics["tokens"], metrics["dead_tokens"], metrics["dead_groups"]) == (12, 6, 1)


def test_dead_and_empty_groups_are_told_apart() -> None:
    dead = prepare([sequence(0, 1, [(1, 4)]), sequence(1, 1, [(1, 4)])], Algorithm.GRPO)
    totals = StepTotals()
    totals.add([GROUP, dead, Prepared((), 2)], Sums())
    assert (totals.dead_groups, totals.dead_tokens) == (1, 6)
    assert (totals.empty_groups, totals.excluded) == (1, 2)
    assert totals.live
