from hypothesis import given
from hypothesis import strategies as st

from flexmarl.runtime.seeds import derive_seed


@given(st.integers(min_value=0), st.text(), st.integers())
def test_a_seed_fits_63_bits_and_is_a_pure_function(root: int, name: str, number: int) -> None:
    seed = derive_seed(root, name, number)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(root, name, number)


def test_parts_do_not_run_together() -> None:
    assert derive_seed(0, "a", "bc") != derive_seed(0, "ab", "c")
    assert derive_seed(1, 23) != derive_seed(12, 3)


def test_the_value_is_fixed_for_all_time() -> None:
    assert derive_seed(0) == 4246866556266386882
    assert derive_seed(0, "group", 3, 7) == 6758479883932061126
