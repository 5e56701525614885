"""What a note says comes back, and nothing is said where there is nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flexmarl.data.notes import Note

NUMBERS = st.integers(0, 2**31)
NOTES = st.builds(
    Note,
    st.dictionaries(st.text(), st.tuples(st.floats(0, 1), NUMBERS)),
    st.none() | st.tuples(NUMBERS, NUMBERS),
)


@given(NOTES)
def test_a_note_comes_back_as_it_was(note: Note) -> None:
    assert Note.read(note.encoded()) == note


def test_what_says_nothing_takes_no_place() -> None:
    assert Note().encoded() == b""
    assert Note.read(b"") == Note()


def test_what_an_older_version_wrote_says_nothing() -> None:
    assert Note.read(b'{"solver": [0.5, 4]}') == Note()
