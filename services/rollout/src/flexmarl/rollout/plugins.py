"""Finds the workflow, reward and environment of a job: built in, installed or the user's own.

A name is one of our own or comes from an installed package's entry point group
(`flexmarl.workflows`, `flexmarl.rewards`, `flexmarl.environments`); `module:attribute` is imported
from the folder that `spec.code.path` names. Whatever is wrong is a JobCodeError that names fields.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from flexmarl.contracts.explain import explain
from flexmarl.contracts.job import CodeSpec
from flexmarl.contracts.problems import FieldPath, Problem, nearest, one_of, show
from flexmarl.runtime.errors import InvalidJobError

ModelT = TypeVar("ModelT", bound=BaseModel)
MadeT = TypeVar("MadeT")


class JobCodeError(InvalidJobError):
    """The job's workflow, reward or environment cannot be used; carries every problem found."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("; ".join(str(problem) for problem in problems))


def add_code_path(code: CodeSpec | None, base_dir: Path) -> None:
    """Make the user's own modules importable; JobCodeError when the folder is missing."""
    if code is None:
        return
    folder = (base_dir / code.path).resolve()
    if not folder.is_dir():
        raise JobCodeError(
            Problem(("spec", "code", "path"), f"{show(code.path)}: {folder} is no folder")
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()


def find(
    kind: str, name: str | None, entrypoint: str | None, builtin: Mapping[str, Any], path: FieldPath
) -> Any:
    """What the job names at `path` (its `name` or `entrypoint`); `kind` is workflow, reward..."""
    match name, entrypoint:
        case str(), None:
            return _named(kind, name, builtin, (*path, "name"))
        case None, str():
            return imported(entrypoint, (*path, "entrypoint"))
        case None, None:
            says = f"names no {kind}"
        case _:
            says = f"names a {kind} twice"
    raise JobCodeError(Problem(path, says, "give either name or entrypoint"))


def _named(kind: str, name: str, builtin: Mapping[str, Any], path: FieldPath) -> Any:
    if name in builtin:
        return builtin[name]
    installed = _installed(f"flexmarl.{kind}s")
    if name not in installed:
        known = sorted({*builtin, *installed})
        raise JobCodeError(
            Problem(path, f"{show(name)} is no {kind}", one_of(known), nearest(name, known))
        )
    try:
        return installed[name].load()
    except (Exception, SystemExit) as error:  # somebody else's module: anything may be raised
        raise JobCodeError(Problem(path, f"{show(name)}: {_import_words(error)}")) from error


@functools.cache
def _installed(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def imported(entrypoint: str, path: FieldPath) -> Any:
    """The attribute that `module:attribute` names; `path` is its field in the job file."""
    module_name, _, attribute = entrypoint.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the user's module: anything may be raised
        hint = (
            "spec.code.path is the folder that modules are imported from"
            if isinstance(error, ModuleNotFoundError) and error.name == module_name.split(".")[0]
            else ""
        )
        raise JobCodeError(
            Problem(path, f"{show(entrypoint)}: {_import_words(error)}", hint)
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name in vars(found) if not name.startswith("_")]
            raise JobCodeError(
                Problem(
                    path,
                    f"{show(entrypoint)}: {module_name} has no {attribute}",
                    nearest=nearest(part, names),
                )
            )
        found = getattr(found, part)
    return found


def _import_words(error: BaseException) -> str:
    return f"cannot be imported: {_raised_words(error)}"


def _raised_words(error: BaseException) -> str:
    """The error, and the line of the user's code that raised it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename != __file__
        and "importlib" not in frame.filename
    ]  # fmt: skip
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def made(make: Callable[..., MadeT], *args: Any, value: Any, path: FieldPath) -> MadeT:
    """`make(*args)`: the user's class. JobCodeError for whatever else its constructor raises.

    `value` is what stands at `path`, the field of the job file that names the class.
    """
    if refusal := cannot_be_called(make, *args):
        raise JobCodeError(Problem(path, f"{show(value)} cannot be made: {refusal}"))
    try:
        return make(*args)
    except JobCodeError:
        raise
    except (Exception, SystemExit) as error:  # the user's code: anything may be raised
        words = f"{show(value)} cannot be made: {_raised_words(error)}"
        raise JobCodeError(Problem(path, words)) from error


def cannot_be_called(function: Callable[..., Any], *args: Any, **keywords: Any) -> str:
    """Why `function` does not take these arguments; empty when it does, or only a call tells."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # C code that says nothing of its parameters
        return ""
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        parameters = [
            str(parameter.replace(annotation=inspect.Parameter.empty))
            for parameter in signature.parameters.values()
        ]
        return f"{error}; its parameters are ({', '.join(parameters)})"
    return ""


def method_cannot_be_called(kind: type[Any], name: str, *args: Any) -> str:
    """`cannot_be_called` for a method of an object of the class."""
    alone = isinstance(inspect.getattr_static(kind, name), staticmethod | classmethod)
    return cannot_be_called(getattr(kind, name), *(() if alone else ("self",)), *args)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether it is an `async def`, wrapped by `functools.wraps` or not."""
    return inspect.iscoroutinefunction(inspect.unwrap(function))


def configured(model: type[ModelT], config: Mapping[str, Any], path: FieldPath) -> ModelT:
    """`config` as the model; JobCodeError with every problem, `path` is the config's field."""
    try:
        return model.model_validate_json(json.dumps(config), strict=True)
    except ValidationError as error:
        problems = explain(error.errors(include_url=False), config, model)
        raise JobCodeError(
            *(replace(problem, path=(*path, *problem.path)) for problem in problems)
        ) from error
