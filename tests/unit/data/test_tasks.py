"""Every record once per epoch, whatever the step's size, and the same again after a restart."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from flexmarl.contracts.sources import DataSpec
from flexmarl.data.tasks import epoch_order, order_seed, tasks_of_step

SEEDS = st.integers(0, 2**63 - 1)


def records(count: int) -> list[dict[str, object]]:
    return [{"question": row} for row in range(count)]


def played(count: int, seed: int, shuffle: bool, per_step: int, steps: int) -> list[str]:
    return [
        task.id
        for step in range(steps)
        for task in tasks_of_step(records(count), seed, shuffle, step, per_step)
    ]


@given(st.integers(1, 40), SEEDS, st.booleans(), st.integers(1, 17), st.integers(1, 30))
def test_each_epoch_plays_every_record_once_across_step_borders(
    count: int, seed: int, shuffle: bool, per_step: int, steps: int
) -> None:
    sequence = played(count, seed, shuffle, per_step, steps)
    for start in range(0, len(sequence) - count + 1, count):
        assert sorted(map(int, sequence[start : start + count])) == list(range(count))
    tail = sequence[len(sequence) // count * count :]
    assert max(Counter(tail).values(), default=1) == 1


@given(st.integers(1, 40), SEEDS, st.booleans(), st.integers(1, 17), st.integers(1, 30))
def test_a_restart_at_any_step_derives_the_same_tasks(
    count: int, seed: int, shuffle: bool, per_step: int, step: int
) -> None:
    whole = played(count, seed, shuffle, per_step, step + 1)
    again = [task.id for task in tasks_of_step(records(count), seed, shuffle, step, per_step)]
    assert whole[step * per_step :] == again


def test_fewer_records_than_a_step_needs_repeat_as_further_indexes() -> None:
    tasks = tasks_of_step(records(3), seed=1, shuffle=True, step=0, tasks_per_step=8)
    assert Counter(task.id for task in tasks).most_common()[-1][1] == 2
    assert len(tasks) == 8


def test_seven_records_in_steps_of_four_leave_no_tail_behind() -> None:
    assert Counter(played(7, 0, True, 4, 7)) == {str(row): 4 for row in range(7)}


def test_epochs_are_shuffled_differently_and_not_at_all_when_not_asked() -> None:
    assert epoch_order(50, 3, True, 0) != epoch_order(50, 3, True, 1)
    assert epoch_order(50, 3, True, 0) != epoch_order(50, 4, True, 0)
    assert epoch_order(5, 3, False, 7) == (0, 1, 2, 3, 4)


def test_the_order_is_part_of_what_a_checkpoint_promises() -> None:
    """A changed order would let a resumed job replay tasks: this value must not change."""
    assert epoch_order(8, 42, True, 0) == (6, 0, 7, 2, 4, 3, 1, 5)


def test_an_id_field_names_the_task() -> None:
    tasks = tasks_of_step([{"id": "a7"}, {"id": 3}, {"id": None}], 0, False, 0, 3)
    assert [task.id for task in tasks] == ["a7", "3", "2"]


def test_the_order_takes_the_job_s_seed_unless_the_data_has_one() -> None:
    assert order_seed(DataSpec(uri="file://x.jsonl"), 5) == 5
    assert order_seed(DataSpec(uri="file://x.jsonl", seed=0), 5) == 0
