"""`--set spec.seed=1`: values from the command line put into the document before it is checked."""

import copy
import re
from collections.abc import Sequence
from typing import Any

from flexmarl.contracts.documents import parse
from flexmarl.contracts.problems import FieldPath, Problem, did_you_mean, one_of

_PART = re.compile(r"\.?([A-Za-z_][\w-]*)|\[([^\[\]]+)\]")

_INDEX = re.compile(r"^[0-9]{1,6}$")


class _CannotSetError(Exception):
    pass


def apply_overrides(
    data: Any, overrides: Sequence[str]
) -> tuple[Any, dict[FieldPath, str], list[Problem]]:
    """A copy of `data` with each `path=value` set, which override set which path, and problems.

    Paths read as in messages; a list's item goes by index or by name: `spec.agents[0]`,
    `spec.agents[solver]`. Values are YAML. Mappings on the way are made where they lack.
    """
    origins: dict[FieldPath, str] = {}
    problems: list[Problem] = []
    if not isinstance(data, dict):
        return data, origins, problems  # refused later, for itself
    data = copy.deepcopy(data)
    for override in overrides:
        text, equals, value = override.partition("=")
        place = f"--set {override}"
        document = parse(value)
        if not equals or not text:
            problems.append(Problem((), "not of the form path=value", place=place))
        elif document.problems:
            problems += [
                Problem((), problem.says, problem.allowed, place=place)
                for problem in document.problems
            ]
        else:
            try:
                path = _resolve(data, _split(text))
                _set(data, path, document.data)
                origins[path] = place
            except _CannotSetError as error:
                problems.append(Problem((), str(error), place=place))
    return data, origins, problems


def _split(text: str) -> list[str | int]:
    parts: list[str | int] = []
    end = 0
    while end < len(text):
        match = _PART.match(text, end)
        if match is None or (end == 0 and match[0].startswith(".")):
            raise _CannotSetError(f'"{text}" is no path; write it as in spec.agents[0].policy')
        name, item = match.groups()
        parts.append(name if name is not None else int(item) if _INDEX.match(item) else f"[{item}]")
        end = match.end()
    return parts


def _resolve(data: Any, parts: Sequence[str | int]) -> FieldPath:
    """`parts` with names of list items replaced by their indices."""
    path: list[str | int] = []
    for part in parts:
        if isinstance(data, list):
            if isinstance(part, str):
                part = _index(data, part)  # noqa: PLW2901
            if part >= len(data):
                raise _CannotSetError(f"there is no item {part}; the list has {len(data)}")
            path.append(part)
            data = data[part]
        elif isinstance(data, dict) or data is None:
            if isinstance(part, int) or part.startswith("["):
                raise _CannotSetError(f"{path[-1] if path else 'the file'} holds no list")
            path.append(part)
            data = data.get(part) if data else None
        else:
            raise _CannotSetError(f"{path[-1]} holds a single value, nothing below it can be set")
    return tuple(path)


def _index(items: list[Any], part: str) -> int:
    if not part.startswith("["):
        raise _CannotSetError(f"{part} follows a list; choose an item, as in [0].{part}")
    wanted = part[1:-1]
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    if wanted in names:
        return names.index(wanted)
    known = [name for name in names if isinstance(name, str)]
    hint = did_you_mean(wanted, known)
    raise _CannotSetError(f'no item is named "{wanted}"; there is {one_of(known)}{hint}')


def _set(data: Any, path: FieldPath, value: Any) -> None:
    for part in path[:-1]:
        if isinstance(data, dict) and data.get(str(part)) is None:
            data[str(part)] = {}
        data = data[part]
    data[path[-1]] = value
