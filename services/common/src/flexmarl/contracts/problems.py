"""What is wrong with a job file, in words for the person who wrote it. Finding it isn't here."""

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FieldPath = tuple[str | int, ...]

_PLAIN_KEY = re.compile(r"^[A-Za-z_][\w-]*$")
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*(?=@)")
_LONGEST_VALUE = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend: where, what (with the value), what is allowed, the nearest match."""

    path: FieldPath
    says: str
    allowed: str = ""
    nearest: str = ""
    place: str = ""
    """`line 17`, or the override that set the value; empty when unknown."""
    warning: bool = False
    """Worth a word, no reason to stop."""

    def __str__(self) -> str:
        where = format_path(self.path) + (f" ({self.place})" if self.place else "")
        parts = [self.says, self.allowed, f"did you mean {self.nearest}?" if self.nearest else ""]
        text = "; ".join(part for part in parts if part)
        return f"{where.strip()}: {text}" if where else text


class JobFileError(Exception):
    """A job file that cannot be used; carries every problem at once, in the file's order."""

    def __init__(
        self, path: Path | str, problems: Sequence[Problem], warnings: Sequence[Problem] = ()
    ) -> None:
        self.path, self.problems, self.warnings = path, tuple(problems), tuple(warnings)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"{path}: {count}{lines}")


def format_path(path: FieldPath) -> str:
    """`spec.policies[1].training.lr`: the field as the user would write it."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.match(part):
            text += f".{part}" if text else part
        else:
            text += f"[{json.dumps(part, ensure_ascii=False)}]"
    return text


def show(value: Any) -> str:
    """`value` in a line: shortened, lists and mappings by their kind, passwords in URLs hidden."""
    match value:
        case None:
            return "nothing"
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list():
            return f"a list of {len(value)}" if value else "an empty list"
        case str():
            text = json.dumps(_PASSWORD.sub("***", value), ensure_ascii=False)
        case _:
            text = json.dumps(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def nearest(word: Any, choices: Iterable[str]) -> str:
    """The choice that `word` probably meant, quoted; empty when none is close."""
    if not isinstance(word, str):
        return ""
    by_key = {_key(choice): choice for choice in reversed(list(choices))}
    found = difflib.get_close_matches(_key(word), by_key, n=1, cutoff=0.6)
    return json.dumps(by_key[found[0]]) if found else ""


def did_you_mean(word: Any, choices: Iterable[str]) -> str:
    """The nearest choice as the end of a sentence, empty when none is close."""
    near = nearest(word, choices)
    return f"; did you mean {near}?" if near else ""


def one_of(choices: Iterable[str]) -> str:
    """`a, b or c`; `none` for no choices."""
    *head, last = list(choices) or ["none"]
    return f"{', '.join(head)} or {last}" if head else last


def _key(word: str) -> str:
    return re.sub(r"[-_\s]", "", word).lower()
