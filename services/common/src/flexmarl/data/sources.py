"""Reads the records that a job's data names: JSON lines, parquet or a reasoning-gym generator.

Which record is played when is decided in `data.tasks`. Everything that can be wrong with the data
is found here, before anything starts, as a DataError that names the field of the job file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from flexmarl.contracts.problems import nearest, one_of, show
from flexmarl.contracts.sources import DataFormat, DataSpec
from flexmarl.data.errors import DataError
from flexmarl.data.gym import URI, generate
from flexmarl.fetch.errors import FetchError
from flexmarl.fetch.sources import mounted

Record = dict[str, Any]

SHOWN_CHARACTERS = 80
_SUFFIXES = {
    ".jsonl": DataFormat.JSONL,
    ".ndjson": DataFormat.JSONL,
    ".parquet": DataFormat.PARQUET,
    ".pq": DataFormat.PARQUET,
}


def load_records(
    spec: DataSpec, base_dir: Path, seed: int, *, field: str = "spec.data"
) -> list[Record]:
    """Every record that `spec` names, in the order of the source, columns renamed; never empty.

    `seed` is the job's, for a generator without one of its own. `field` is where `spec` stands in
    the job file: errors name it, and generators without a seed differ by it, so that held-out tasks
    are not the training tasks. Raises DataError.
    """
    if spec.uri.startswith("gym://"):
        if spec.format is not None:
            says = f"{show(spec.format.value)} is given"
            raise DataError(field, ("format",), says, "a generator has no format")
        records = generate(spec, seed, field)
        numbered: Iterable[tuple[str, Record]] = (
            (f"item {number}", record) for number, record in enumerate(records)
        )
        return _renamed(numbered, spec.columns, field)
    if spec.size != DataSpec.model_fields["size"].default:
        raise DataError(field, ("size",), f"{spec.size} is given", "a file has the size it has")
    path = _path(spec.uri, base_dir, field)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(field, URI, f"{show(spec.uri)}: {path} {what}", near=_sibling(path))
    rows = _json_lines if _format_of(spec, path, field) is DataFormat.JSONL else _parquet_rows
    found = _renamed(rows(path, field), spec.columns, field)
    if not found:
        raise DataError(field, URI, f"{show(spec.uri)}: {path} is empty", "it must hold a record")
    return found


def _path(uri: str, base_dir: Path, field: str) -> Path:
    """The file that `uri` names, fetched if it has to be."""
    try:
        if uri.startswith("pvc://"):
            return mounted(uri)
        if uri.startswith("s3://"):
            from flexmarl.fetch.fetching import fetch

            folder = fetch(uri).folder
            assert folder is not None  # as for every s3:// source
            return folder / uri.rpartition("/")[2]
    except FetchError as error:
        raise DataError(field, URI, str(error)) from error
    return base_dir / uri.removeprefix("file://")


def _format_of(spec: DataSpec, path: Path, field: str) -> DataFormat:
    guess = spec.format or _SUFFIXES.get(path.suffix.lower())
    if guess is None:
        says = f"the name {show(path.name)} does not tell the format"
        raise DataError(field, URI, says, f"set {field}.format to {one_of(DataFormat)}")
    return guess


def _json_lines(path: Path, field: str) -> Iterator[tuple[str, Record]]:
    """("line N", object) of each line that is not blank."""
    for number, raw in enumerate(path.read_bytes().splitlines(), start=1):
        if not raw.strip():
            continue
        shown = raw[:SHOWN_CHARACTERS].decode(errors="replace")
        where = f"{path}, line {number}"
        try:
            value = json.loads(
                raw.decode("utf-8-sig" if number == 1 else "utf-8"), parse_constant=_no_constant
            )
        except json.JSONDecodeError as error:
            why = f"not JSON ({error.msg}, column {error.colno})"
            raise DataError(field, URI, f"{where}: {why}: {shown}") from None
        except UnicodeDecodeError:
            raise DataError(field, URI, f"{where}: not UTF-8: {shown}") from None
        except ValueError as error:
            raise DataError(field, URI, f"{where}: not JSON ({error}): {shown}") from None
        if not isinstance(value, dict):
            raise DataError(field, URI, f"{where}: not an object but {_kind(value)}: {shown}")
        yield f"line {number}", value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _kind(value: object) -> str:
    names = {list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _parquet_rows(path: Path, field: str) -> Iterator[tuple[str, Record]]:
    """("row N", values by column) of each row, counted from 0; NaN becomes None."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(field, URI, f"{path} is not a parquet file: {error}") from None
    for number, row in enumerate(table.to_pylist()):
        yield (
            f"row {number}",
            {
                name: _plain(value, f"{path}, row {number}, column {show(name)}", field)
                for name, value in row.items()
            },
        )


def _plain(value: Any, where: str, field: str) -> Any:
    """`value` in JSON's types. Dates become ISO 8601 text; other types are refused."""
    match value:
        case float() if math.isnan(value):
            return None
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_plain(item, where, field) for item in value]
        case dict():
            return {str(key): _plain(item, where, field) for key, item in value.items()}
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise DataError(field, URI, f"{where}: a {type(value).__name__} cannot be part of a task")


def _renamed(
    rows: Iterable[tuple[str, Record]], columns: dict[str, str], field: str
) -> list[Record]:
    """Each record with `columns` (task field -> source column) applied.

    A source column goes by its new name only; a mapped field hides a column of the same name.
    """
    if not columns:
        return [record for _, record in rows]
    taken = set(columns.values())
    found = []
    for where, record in rows:
        for name, column in columns.items():
            if column not in record:
                says = f"{where} has no column {show(column)}"
                allowed = f"it has {one_of(sorted(record))}"
                near = nearest(column, record)
                raise DataError(field, ("columns", name), says, allowed, near)
        kept = {key: value for key, value in record.items() if key not in taken}
        found.append(kept | {name: record[column] for name, column in columns.items()})
    return found


def _sibling(path: Path) -> str:
    folder = path.parent
    return nearest(path.name, (f.name for f in folder.iterdir())) if folder.is_dir() else ""
