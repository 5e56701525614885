"""The table of values in the chart's README, made from values.yaml and its comments.

`python tests/contract/chart/readme.py` writes it; `test_readme` says when that is due.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[3] / "charts/flexmarl"
MARK = "<!-- Made from values.yaml by tests/contract/chart/readme.py. -->"


@dataclass(frozen=True, slots=True)
class Value:
    path: str
    default: str
    meaning: str


def values(text: str) -> Iterator[Value]:
    """Everything that a comment right above it describes; what lies deeper is its default."""
    lines = text.splitlines()
    described: yaml.Node | None = yaml.compose(text)
    assert isinstance(described, yaml.MappingNode)
    yield from _values(described, yaml.safe_load(text), lines, "")


def _values(
    node: yaml.MappingNode, data: dict[str, Any], lines: list[str], parent: str
) -> Iterator[Value]:
    for key, inner in node.value:
        path = f"{parent}{key.value}"
        meaning = " ".join(_comment(lines, key.start_mark.line))
        below = data[key.value]
        if meaning:
            yield Value(path, json.dumps(below), meaning)
        elif isinstance(inner, yaml.MappingNode) and below:
            yield from _values(inner, below, lines, f"{path}.")
        else:
            yield Value(path, json.dumps(below), "")


def _comment(lines: list[str], line: int) -> list[str]:
    words: list[str] = []
    while line and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        words.insert(0, lines[line].lstrip(" #"))
    return words


def table(text: str) -> str:
    rows = [f"| `{v.path}` | `{v.default}` | {v.meaning} |" for v in values(text)]
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *rows]) + "\n"


def with_table(readme: str, text: str) -> str:
    return f"{readme.partition(MARK)[0]}{MARK}\n\n{table(text)}"


if __name__ == "__main__":
    page = CHART / "README.md"
    page.write_text(with_table(page.read_text(), (CHART / "values.yaml").read_text()))
