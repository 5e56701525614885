"""Finds the workflow, reward and environment of a job: built in, installed or the user's own.

A name is one of our own or comes from an installed package's entry point group
(`flexmarl.workflows`, `flexmarl.rewards`, `flexmarl.environments`); `module:attribute` is imported
from the folder that `spec.code.path` names. Whatever is wrong is a JobCodeError that names fields.
"""

from __future__ import annotations

import functools
import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.problems import FieldPath, Problem, nearest, one_of, show
from flexmarl.runtime.errors import InvalidJobError

ModelT = TypeVar("ModelT", bound=BaseModel)


class JobCodeError(InvalidJobError):
    """The job's workflow, reward or environment cannot be used; carries every problem found."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("; ".join(str(problem) for problem in problems))


def add_code_path(job: MARLJob, base_dir: Path) -> None:
    """Make the user's own modules importable; JobCodeError when the folder is missing."""
    if job.spec.code is None:
        return
    folder = (base_dir / job.spec.code.path).resolve()
    if not folder.is_dir():
        raise JobCodeError(
            Problem(("spec", "code", "path"), f"{show(job.spec.code.path)}: {folder} is no folder")
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
    """The error, and the line of the user's code that raised it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename != __file__
        and "importlib" not in frame.filename
    ]  # fmt: skip
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"cannot be imported: {type(error).__name__}: {error}{where}"


def configured(model: type[ModelT], config: Mapping[str, Any], path: FieldPath) -> ModelT:
    """`config` as the model; JobCodeError with every problem, `path` is the config's field."""
    try:
        return model.model_validate(config)
    except ValidationError as error:
        raise JobCodeError(
            *(_problem(model, entry, path) for entry in error.errors(include_url=False))
        ) from error


def _problem(model: type[BaseModel], entry: Any, path: FieldPath) -> Problem:
    at = (*path, *entry["loc"])
    if entry["type"] != "extra_forbidden":
        given = "" if entry["type"] == "missing" else f"{show_any(entry['input'])}: "
        return Problem(at, f"{given}{entry['msg'][0].lower()}{entry['msg'][1:]}")
    if len(entry["loc"]) > 1:
        return Problem(at, "unknown key")
    known = [part.alias or name for name, part in model.model_fields.items()]
    return Problem(at, "unknown key", one_of(known), nearest(entry["loc"][0], known))


def show_any(value: Any) -> str:
    """`show` for values that need not be JSON."""
    plain = isinstance(value, str | int | float | bool | dict | list | None)
    return show(value) if plain else repr(value)


def only_these(config: Mapping[str, Any], known: Sequence[str], path: FieldPath) -> None:
    """JobCodeError unless every key of `config` is known."""
    problems = [
        Problem((*path, key), "unknown key", one_of(known), nearest(key, known))
        for key in config
        if key not in known
    ]
    if problems:
        raise JobCodeError(*problems)
