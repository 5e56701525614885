import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.runtime.errors import InvalidRequestError
from flexmarl.tensors.layout import ALIGNMENT, ITEM_BYTES, Layout, TensorSpec, checksum

specs = st.builds(
    TensorSpec,
    st.sampled_from(sorted(ITEM_BYTES)),
    st.lists(st.integers(0, 7), max_size=3).map(tuple),
)
layouts = st.dictionaries(st.text(min_size=1, max_size=8), specs, max_size=6).map(Layout)


@given(layouts)
def test_a_layout_survives_json(layout: Layout) -> None:
    again = Layout.from_json(layout.to_json())
    assert list(again.tensors.items()) == list(layout.tensors.items())


@given(layouts)
def test_tensors_are_aligned_and_never_overlap(layout: Layout) -> None:
    end = 0
    for name, spec in layout.tensors.items():
        assert layout.offsets[name] >= end
        assert layout.offsets[name] % ALIGNMENT == 0
        end = layout.offsets[name] + spec.nbytes
    assert end <= layout.nbytes


def test_an_unknown_dtype_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match=r"tensor 'w': dtype 'float32'"):
        Layout({"w": TensorSpec("float32", (2,))})


def test_the_checksum_sees_names_dtypes_shapes_and_bytes_but_not_the_order() -> None:
    one = ("a", TensorSpec("U8", (4,)), memoryview(b"1234"))
    two = ("b", TensorSpec("U8", (2, 2)), memoryview(b"5678"))
    base = checksum([one, two])
    assert checksum([two, one]) == base
    others = [
        [("c", *one[1:]), two],
        [("a", TensorSpec("I8", (4,)), one[2]), two],
        [("a", TensorSpec("U8", (2, 2)), one[2]), two],
        [("a", one[1], memoryview(b"1235")), two],
        [one],
    ]
    assert len({base, *(checksum(other) for other in others)}) == len(others) + 1
