"""Records from a reasoning-gym generator: `gym://chain_sum?min_terms=2&max_terms=3`.

Scoring answers is not here; the rewards of the rollout worker do it.
"""

from __future__ import annotations

import dataclasses
import json
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote

from flexmarl.contracts.problems import nearest, one_of, show
from flexmarl.contracts.sources import DataSpec
from flexmarl.data.errors import DataError
from flexmarl.data.reasoning import reasoning_gym
from flexmarl.runtime.seeds import derive_seed

SEEDS = 2**31  # some generators seed numpy with seed + index, which must stay below 2**32
URI = ("uri",)
# What a generator raises on parameters that do not go together; they only assert.
_REFUSALS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


def generate(spec: DataSpec, seed: int, field: str) -> list[dict[str, Any]]:
    """`spec.size` records {"question", "answer", "metadata", "gym": generator, "index"}.

    The seed of the generator is the `seed` of the URI as it stands, else it is derived: item i of a
    generator comes from seed + i, so that neighbouring seeds would share most of their items.
    Raises DataError.
    """
    name, parameters = _parsed(spec.uri, field)
    registry = _registry(field)
    if name not in registry:
        says = f"reasoning-gym has no generator {show(name)}"
        raise DataError(field, URI, says, near=nearest(name, registry))
    make, config_class = registry[name]
    given = _checked(parameters, config_class, name, field)
    if "seed" not in given:
        root = spec.seed if spec.seed is not None else derive_seed(seed, field)
        given["seed"] = derive_seed(root, "gym", name) % SEEDS
    try:
        config = config_class(**given, size=spec.size)
        if hasattr(config, "validate"):
            config.validate()
        dataset = make(config=config)
        items = [dataset[index] for index in range(spec.size)]
    except _REFUSALS as error:
        says = f"generator {show(name)} refuses {show(spec.uri)}"
        raise DataError(field, URI, f"{says}: {error or type(error).__name__}") from error
    return [
        {
            "question": item["question"],
            "answer": item["answer"],
            "metadata": json.loads(json.dumps(item["metadata"], default=_jsonable)),
            "gym": name,
            "index": index,
        }
        for index, item in enumerate(items)
    ]


def _registry(field: str) -> dict[str, tuple[Any, Any]]:
    """Generator name -> (data set class, configuration class)."""
    try:
        return dict(reasoning_gym().factory.DATASETS)
    except ImportError as error:
        says = f"generators need reasoning-gym ({error})"
        raise DataError(field, URI, says, "pip install 'flexmarl[tasks]'") from None


def _parsed(uri: str, field: str) -> tuple[str, dict[str, Any]]:
    """Generator and parameters; values are JSON, words need no quotes, and a plus is a plus."""
    name, _, query = uri.removeprefix("gym://").partition("?")
    parameters: dict[str, Any] = {}
    for pair in filter(None, query.split("&")):
        key, equals, text = (unquote(part) for part in pair.partition("="))
        if not equals:
            raise DataError(field, URI, show(uri), "parameters read name=value&name=value")
        if key in parameters:
            raise DataError(field, URI, f"parameter {show(key)} of {show(name)} is given twice")
        try:
            parameters[key] = json.loads(text)
        except json.JSONDecodeError:
            parameters[key] = text
    return name.strip("/"), parameters


def _checked(
    parameters: dict[str, Any], config_class: Any, name: str, field: str
) -> dict[str, Any]:
    """`parameters`, each known to the generator and of the type that it declares."""
    known = {part.name for part in dataclasses.fields(config_class)} - {"size"}
    hints = get_type_hints(config_class)
    for key, value in parameters.items():
        if key == "size":
            says = f"parameter {show(key)} of {show(name)} is given here"
            raise DataError(field, URI, says, f"say {field}.size instead")
        if key not in known:
            says = f"generator {show(name)} has no parameter {show(key)}"
            allowed = f"it has {one_of(sorted(known))}"
            raise DataError(field, URI, says, allowed, nearest(key, known))
        if not _fits(value, hints.get(key)):
            says = f"parameter {show(key)} of {show(name)} is {show(value)}"
            raise DataError(field, URI, says, f"must be {_hint_name(hints[key])}")
    return dict(parameters)


def _fits(value: Any, hint: Any) -> bool:
    """Whether `value` is of the plain type that `hint` names; other hints are the generator's."""
    kinds = set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
    if not kinds <= {bool, int, float, str, type(None)}:
        return True
    return type(value) in kinds or (type(value) is int and float in kinds)


def _hint_name(hint: Any) -> str:
    names = (kind.__name__ for kind in get_args(hint) or (hint,))
    return " or ".join("null" if name == "NoneType" else name for name in names)


def _jsonable(value: Any) -> Any:
    """What stands for a value that JSON does not know: lists for sets and arrays, else its text."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return value.tolist()
    return str(value)
