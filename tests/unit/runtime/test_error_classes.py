"""Errors pass through context managers, which write their traceback anew."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [*ROOT.glob("services/*/src/**/*.py"), *ROOT.glob("operator/src/**/*.py")]


def frozen_errors(source: str) -> list[str]:
    """Classes of errors that are frozen dataclasses: `__traceback__` of those cannot be set."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and any("Error" in ast.unparse(base) or "Exception" in ast.unparse(base)
                for base in node.bases)
        and any("dataclass" in ast.unparse(each) and "frozen=True" in ast.unparse(each)
                for each in node.decorator_list)
    ]  # fmt: skip


def test_no_error_is_a_frozen_dataclass() -> None:
    found = {str(path): frozen_errors(path.read_text()) for path in SOURCES}
    assert len(found) > 200
    assert {path: names for path, names in found.items() if names} == {}


def test_a_frozen_error_would_be_found() -> None:
    source = "@dataclass(frozen=True, slots=True)\nclass LostError(Exception):\n    status: int\n"
    assert frozen_errors(source) == ["LostError"]
