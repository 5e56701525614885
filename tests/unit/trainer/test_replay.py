"""Which groups are replayed: a function of the seed alone."""

from hypothesis import given
from hypothesis import strategies as st

from flexmarl.trainer.replay import choose


@given(
    st.integers(0, 30),
    st.integers(1, 16),
    st.floats(0.01, 4),
    st.integers(1, 16),
    st.integers(0, 1 << 62),
)
def test_replayed_groups_are_distinct_ones_of_the_last_steps(
    step: int, groups: int, share: float, age: int, seed: int
) -> None:
    places = choose(step, groups, share=share, max_age=age, seed=seed)
    assert places == choose(step, groups, share=share, max_age=age, seed=seed)
    assert places == sorted(set(places))
    assert all(step - age <= earlier < step and 0 <= index < groups for earlier, index in places)
    assert len(places) == min(min(age, step) * groups, int(share * groups + 0.5))


def test_another_seed_chooses_others() -> None:
    chosen = {tuple(choose(9, 8, share=0.5, max_age=2, seed=seed)) for seed in range(20)}
    assert len(chosen) > 15
