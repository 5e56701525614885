from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.contracts.documents import dump, parse

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]))
    | st.sampled_from(["no", "1e-3", "010", "1:30", "2024-01-01", "0x1F", "=", "<<", "~", "1_0"])
)
DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text("abc-<=.1e"), inner)
)


@given(DATA)
def test_what_is_dumped_is_read_back(data: Any) -> None:
    document = parse(dump(data))
    assert document.problems == []
    assert document.data == data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("-.5", -0.5),
        ("0x10", 16),
        ("010", 8),
        ("1:30", "1:30"),
        ("2024-13-45", "2024-13-45"),
        ("no", False),
        ("'no'", "no"),
        ("null", None),
        ("", None),
        ("08", 8.0),
        ("1_000", 1000),
        ("v1", "v1"),
    ],
)
def test_scalars_are_read_as_on_a_cluster(text: str, value: Any) -> None:
    document = parse(text)
    assert (document.data, document.problems) == (value, [])
    assert type(document.data) is type(value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\na: 3", "a (line 3): duplicate key, first given on line 1"),
        (
            "x: {y: {z: 1,\n z: 2}}",
            "x.y.z (line 2): duplicate key, first given on line 1",
        ),
        ("b: &x {a: 1, a: 2}", "b.a (line 1): duplicate key, first given on line 1"),
        ("a:\n  - !!python/object:os.system ls", "a[0] (line 2): the tag"),
        ("a: !!binary aGk=", "a (line 1): the tag"),
        ("a: !mine {}", "a (line 1): the tag"),
        ("a: .nan", "a (line 1): .nan is not a finite number"),
        ("a: !!int xyz", 'a (line 1): "xyz" is no valid int'),
        ("a: !!bool xyz", 'a (line 1): "xyz" is no valid bool'),
        ("a: 99999999999999999999", "a (line 1): the number is larger than 64 bits"),
        ("on: 1", "(line 1): the key on is no text in YAML; write it in quotes"),
        ("? [a]\n: 1", "(line 1): a key must be text"),
        ('a: "\\ud800"', "a (line 1): holds half a character"),
        ("a: &a [*a]", "a[0] (line 1): contains itself"),
        ("<<: 3", "(line 1): << takes a mapping"),
        ("a: [1,\nb", "(line 2): not valid YAML: while parsing a flow sequence"),
        ("a: *nothing", "(line 1): not valid YAML: found undefined alias"),
        ("a: 1\n---\nb: 2", "(line 2): not valid YAML: expected a single document"),
        ("a: \x07", "not valid YAML: unacceptable character #x0007"),
        ("[" * 60 + "]" * 60, "nested more than 50 deep"),
        ("[" * 5000, "nested too deeply"),
        ("x" * (1 << 20) + "x", "the file is larger than 1 MiB"),
    ],
)
def test_what_cannot_be_data_is_named_with_its_line(text: str, says: str) -> None:
    problems = parse(text).problems
    assert says in str(problems[0])


def test_aliases_cannot_unfold_into_a_huge_document() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    problems = parse("\n".join(lines)).problems
    assert [problem.says for problem in problems] == ["unfolds into more than 100000 values"]


def test_merge_keys_bring_fields_that_own_ones_override() -> None:
    text = "base: &b {x: 1, y: 2}\nother: &o {y: 3, z: 4}\nmine: {<<: [*b, *o], x: 5}"
    document = parse(text)
    assert document.problems == []
    assert document.data["mine"] == {"x": 5, "y": 2, "z": 4}


def test_the_line_of_a_missing_field_is_that_of_its_parent() -> None:
    document = parse("a:\n  b:\n    - c: 1\n    - c: 2\n")
    assert document.place(("a", "b", 1, "c")) == "line 4"
    assert document.place(("a", "b", 1, "d", "e")) == "line 4"
    assert document.place(("nothing",)) == "line 1"
