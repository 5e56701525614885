"""Records come out as the file says, and everything wrong with it is named."""

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from flexmarl.contracts.sources import DataFormat, DataSpec
from flexmarl.data.errors import DataError
from flexmarl.data.sources import load_records


def load(folder: Path, uri: str, **fields: Any) -> list[dict[str, Any]]:
    return load_records(DataSpec(uri=uri, **fields), folder, 0, field="spec.data")


def refusal(folder: Path, uri: str, **fields: Any) -> str:
    with pytest.raises(DataError) as caught:
        load(folder, uri, **fields)
    return str(caught.value)


def write(folder: Path, text: str | bytes, name: str = "tasks.jsonl") -> str:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return f"file://{name}"


def test_json_lines_come_in_order_without_blank_lines(tmp_path: Path) -> None:
    uri = write(tmp_path, '\ufeff{"q": "a"}\n\n{"q": "ü"}\r\n  \n')
    assert load(tmp_path, uri) == [{"q": "a"}, {"q": "ü"}]


def test_an_absolute_path_counts_from_the_root(tmp_path: Path) -> None:
    write(tmp_path, '{"q": 1}\n')
    assert load(Path("/nowhere"), f"file://{tmp_path}/tasks.jsonl") == [{"q": 1}]


def test_columns_are_renamed_and_others_kept(tmp_path: Path) -> None:
    uri = write(tmp_path, '{"problem": "1+1", "question": "old", "level": 2}\n')
    assert load(tmp_path, uri, columns={"question": "problem"}) == [{"question": "1+1", "level": 2}]


def test_columns_may_change_places(tmp_path: Path) -> None:
    uri = write(tmp_path, '{"a": 1, "b": 2}\n')
    assert load(tmp_path, uri, columns={"a": "b", "b": "a"}) == [{"a": 2, "b": 1}]


def test_a_missing_file_names_itself_and_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path, "{}\n")
    text = refusal(tmp_path, "file://task.jsonl")
    assert text.startswith('spec.data.uri: "file://task.jsonl"')
    assert "does not exist" in text
    assert '"tasks.jsonl"' in text


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").mkdir()
    assert "is a folder" in refusal(tmp_path, "file://tasks.jsonl")


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    assert "is empty" in refusal(tmp_path, write(tmp_path, text))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"q": ', "not JSON"),
        ('{"q": NaN}', "NaN is no JSON number"),
        (b'{"q": "\xff"}', "not UTF-8"),
        ("[1, 2]", "not an object but a list"),
        ('"text"', "not an object but a string"),
        ("3", "not an object but a number"),
        ("null", "not an object but null"),
    ],
)
def test_a_bad_line_is_named_by_number_and_text(
    tmp_path: Path, line: str | bytes, why: str
) -> None:
    raw = line.encode() if isinstance(line, str) else line
    text = refusal(tmp_path, write(tmp_path, b'{"q": 1}\n\n' + raw + b'\n{"q": 2}\n'))
    assert "line 3" in text
    assert why in text
    assert raw.decode(errors="replace") in text


def test_a_missing_column_names_those_that_exist_and_the_nearest(tmp_path: Path) -> None:
    uri = write(tmp_path, '{"problem": 1, "level": 2}\n{"level": 3}\n')
    text = refusal(tmp_path, uri, columns={"question": "problm"})
    assert "spec.data.columns.question: line 1" in text
    assert 'level or problem; did you mean "problem"?' in text
    assert "line 2" in refusal(tmp_path, uri, columns={"question": "problem"})


def test_the_format_is_told_by_the_name_or_the_job(tmp_path: Path) -> None:
    uri = write(tmp_path, '{"q": 1}\n', "tasks.txt")
    assert '"tasks.txt" does not tell the format; set spec.data.format to jsonl or' in refusal(
        tmp_path, uri
    )
    assert load(tmp_path, uri, format=DataFormat.JSONL) == [{"q": 1}]


def test_a_size_is_for_generators_only(tmp_path: Path) -> None:
    assert "spec.data.size: 5 is given" in refusal(tmp_path, write(tmp_path, "{}\n"), size=5)
    assert "spec.data.format" in refusal(tmp_path, "gym://chain_sum", format=DataFormat.JSONL)


def test_parquet_gives_the_same_records_as_json_lines(tmp_path: Path) -> None:
    rows = [{"q": "a", "n": 1, "parts": ["x", "y"]}, {"q": "b", "n": None, "parts": []}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "tasks.parquet")
    lines = write(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    assert load(tmp_path, "file://tasks.parquet") == load(tmp_path, lines) == rows
    assert load(tmp_path, "file://tasks.parquet", columns={"number": "n"})[0]["number"] == 1


def test_parquet_values_become_json_or_are_refused(tmp_path: Path) -> None:
    table = pa.table({"day": [datetime.date(2026, 1, 2)], "f": [float("nan")]})
    parquet.write_table(table, tmp_path / "tasks.parquet")
    assert load(tmp_path, "file://tasks.parquet") == [{"day": "2026-01-02", "f": None}]
    parquet.write_table(pa.table({"raw": [b"1"]}), tmp_path / "tasks.parquet")
    assert 'row 0, column "raw": a bytes' in refusal(tmp_path, "file://tasks.parquet")


def test_a_file_that_is_no_parquet_or_has_no_row_is_refused(tmp_path: Path) -> None:
    assert "is not a parquet file" in refusal(tmp_path, write(tmp_path, "{}", "tasks.parquet"))
    parquet.write_table(pa.table({"q": pa.array([], pa.string())}), tmp_path / "tasks.parquet")
    assert "is empty" in refusal(tmp_path, "file://tasks.parquet")


def test_an_error_carries_its_field_what_is_allowed_and_the_nearest_match(tmp_path: Path) -> None:
    uri = write(tmp_path, '{"problem": 1}\n')
    with pytest.raises(DataError) as caught:
        load(tmp_path, uri, columns={"the question": "problm"})
    problem = caught.value.problem
    assert problem.path == ("columns", "the question")
    assert (problem.says, problem.allowed, problem.nearest) == (
        'line 1 has no column "problm"',
        "it has problem",
        '"problem"',
    )
    assert str(caught.value) == f"spec.data.{problem}"
