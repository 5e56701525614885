"""pydantic's errors as `Problem`s: what is allowed in words, and the nearest match of a typo."""

import re
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from flexmarl.contracts.base import NAME
from flexmarl.contracts.cluster import LABEL_KEY, LABEL_VALUE, RESOURCE
from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.problems import FieldPath, Problem, nearest, one_of, show

PATTERNS = {
    RESOURCE: "a resource of nodes, vendor.example/name",
    LABEL_KEY: "the key of a label or taint, name or vendor.example/name",
    LABEL_VALUE: 'the value of a label, letters, digits and inner "-", "_", "."',
    NAME: 'lower-case letters, digits and inner "-", as in solver-1',
    r"^[\w.]+:[\w.]+$": "an entry point, package.module:attribute",
    r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$": 'a name of lower-case letters, digits and inner "-", "."',
    r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$": "bytes, as in 512Mi or 10Gi",
    r"^[a-z0-9.-]+/[a-zA-Z0-9_.-]+$": "the name of a controller, as in example.com/name",
    r"^https?://.+": "a URL that starts with http:// or https://",
    r"^https?://[^@\s/]+/[^@\s]+$": "https://host/repository, without a password",
    r"^[^@\s]*$": "a branch, a tag or a whole commit hash",
}
"""What a pattern of the schema asks for; those of the form `^(a|b)://.+` explain themselves."""

_SCHEMES = re.compile(r"^\^\(?([\w|]+)\)?://\.\+$")


def explain(
    errors: Sequence[ErrorDetails], data: Any, model: type[BaseModel] = MARLJob
) -> list[Problem]:
    """One problem per thing to mend: a misspelt required field is one, not two.

    `data` is the document that was validated as `model`; paths count from there.
    """
    missing = {tuple(e["loc"]) for e in errors if e["type"] == "missing"}
    problems: list[Problem] = []
    for error in errors:
        path = tuple(error["loc"])
        if error["type"] == "extra_forbidden":
            problem = _unknown(path, model)
            missing.discard((*path[:-1], problem.nearest.strip('"')))
            problems.append(problem)
        elif error["type"] != "missing":
            problems.append(_invalid(path, error))
    problems += [_missing(path, data) for path in missing]
    return problems


def pattern_words(pattern: str) -> str:
    """What a regular expression of the schema asks for, in words."""
    if pattern in PATTERNS:
        return PATTERNS[pattern]
    schemes = _SCHEMES.match(pattern)
    if schemes is None:
        return f"what matches {pattern}"
    return f"a URI that starts with {one_of(f'{name}://' for name in schemes[1].split('|'))}"


def _unknown(path: FieldPath, model: type[BaseModel]) -> Problem:
    *parent, name = path
    here = fields_of(tuple(parent), model)
    near = nearest(name, here)
    if near:
        return Problem(path, "unknown field", nearest=near)
    elsewhere = _elsewhere(str(name), tuple(parent), model)
    if elsewhere:
        return Problem(path, "unknown field here", nearest=elsewhere)
    return Problem(path, "unknown field", f"allowed here: {', '.join(here) or 'none'}")


def _missing(path: FieldPath, data: Any) -> Problem:
    given: Any = data
    for part in path[:-1]:
        given = given[part]
    near = nearest(path[-1], given) if isinstance(given, dict) else ""
    return Problem(path, "required, but missing", f"{near} stands there" if near else "")


def _invalid(path: FieldPath, error: ErrorDetails) -> Problem:
    value, context, kind = error["input"], error.get("ctx", {}), error["type"]
    says, near = f"{show(value)} is not allowed", ""
    if kind in ("enum", "literal_error"):
        choices = re.findall(r"'([^']*)'", context["expected"])
        allowed = f"must be {one_of(choices)}"
        near = nearest(value, choices) if len(choices) > 1 else ""
    elif kind == "string_pattern_mismatch":
        allowed = f"must be {pattern_words(context['pattern'])}"
        near = _nearest_uri(value, context["pattern"])
    elif kind == "string_type" and isinstance(value, bool | int | float):
        says = f"{show(value)} is no text in YAML"
        allowed = "write it in quotes if you mean text"
    elif kind in ("value_error", "assertion_error"):  # of a validator that a user wrote
        says, allowed = f"{show(value)} is not allowed", str(context["error"])
    elif kind in _BOUNDS:
        allowed = _BOUNDS[kind].format(**context)
    else:
        words = error["msg"].removeprefix("Input should be ")
        allowed = f"must be {_KINDS.get(kind, words)}"
    return Problem(path, says, allowed, near)


def _nearest_uri(value: str, pattern: str) -> str:
    """`value` with its scheme mended; empty when that is not what is wrong."""
    schemes, (scheme, found, rest) = _SCHEMES.match(pattern), value.partition("://")
    near = nearest(scheme, schemes[1].split("|")).strip('"') if schemes and found else ""
    return show(f"{near}://{rest}") if near and near != scheme else ""


_BOUNDS = {
    "string_too_long": "at most {max_length} characters",
    "too_short": "at least {min_length} needed",
    "too_long": "at most {max_length} allowed",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
}
_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def fields_of(path: FieldPath, root: type[BaseModel] = MARLJob) -> list[str]:
    """The names that `root` allows at `path`, as users write them; empty where any goes."""
    model: Any = root
    for part in path:
        model = _step(model, part)
        if model is None:
            return []
    return [_alias(model, name) for name in model.model_fields] if _is_model(model) else []


def _step(model: Any, part: str | int) -> Any:
    """The model or container below `model` at `part`."""
    if _is_model(model):
        for name, field in model.model_fields.items():
            if _alias(model, name) == part:
                return _inner(field.annotation)
        return None
    if typing.get_origin(model) is list and isinstance(part, int):
        return _inner(typing.get_args(model)[0])
    return None


def _inner(annotation: Any) -> Any:
    """`annotation` without `Annotated` and `| None`."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _inner(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        return _inner(kinds[0])
    return annotation


def _elsewhere(name: str, here: FieldPath, root: type[BaseModel]) -> str:
    """The field of that very name nearest to `here` in the schema, by its path; "" for none."""
    wanted = re.sub(r"[-_]", "", name).lower()

    def distance(found: tuple[str, ...]) -> int:
        mine = [part for part in here if isinstance(part, str)]
        common = 0
        for one, other in zip(mine, found, strict=False):
            if one != other.removesuffix("[]"):
                break
            common += 1
        return len(mine) + len(found) - 2 * common

    found = [path for path in _all_fields(root, ()) if path[-1].lower() == wanted]
    return ".".join(sorted(found, key=distance)[0]) if found else ""


def _all_fields(model: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if typing.get_origin(model) is list:
        yield from _all_fields(_inner(typing.get_args(model)[0]), (*path[:-1], path[-1] + "[]"))
    elif _is_model(model):
        for name, field in model.model_fields.items():
            below = (*path, _alias(model, name))
            yield below
            yield from _all_fields(_inner(field.annotation), below)


def _alias(model: type[BaseModel], name: str) -> str:
    return model.model_fields[name].alias or name


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
