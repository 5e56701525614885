"""Read a MARLJob from YAML: the one way in for the command line and for every process.

Every problem of a file is reported at once, as `JobFileError`; pydantic's own errors never get out.
Light on purpose: nothing here imports more than PyYAML and pydantic.
"""

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flexmarl.contracts import rules
from flexmarl.contracts.documents import Document, parse
from flexmarl.contracts.explain import explain
from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.overrides import apply_overrides
from flexmarl.contracts.problems import FieldPath, JobFileError, Problem, format_path, show

__all__ = [
    "Inspection",
    "JobFile",
    "JobFileError",
    "Problem",
    "checked",
    "inspect_job",
    "known_part",
    "known_values",
    "load_job",
    "read_job",
    "served_job",
]

BASE_DIR = "flexmarl.io/base-dir"
"""Annotation of a kept job file: the folder that relative URIs count from, not the file's own."""
ENUMERATIONS = ("enum", "literal_error")
"""pydantic's types of errors."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job that holds, and what its author should hear about it."""

    path: Path
    job: MARLJob
    document: dict[str, Any]
    """As written, overrides applied: what a run keeps as its job file."""
    warnings: tuple[Problem, ...]

    @property
    def base_dir(self) -> Path:
        """The folder that relative URIs count from."""
        return Path(self.job.metadata.annotations.get(BASE_DIR) or self.path.absolute().parent)


@dataclass(frozen=True, slots=True)
class Inspection:
    """What could be read of a job file that may not hold."""

    path: Path
    data: Any
    """Plain data, overrides applied."""
    job: MARLJob | None
    """None where the schema is broken; rules may be broken still."""
    problems: tuple[Problem, ...]
    """Errors and warnings."""
    source: Document
    origins: Mapping[FieldPath, str]

    def placed(self, problem: Problem) -> Problem:
        """`problem` with its line, or with the override that set the value."""
        if problem.place:
            return problem
        for end in range(len(problem.path), 0, -1):
            if problem.path[:end] in self.origins:
                return replace(problem, place=self.origins[problem.path[:end]])
        return replace(problem, place=self.source.place(problem.path))

    def in_order(self, more: Sequence[Problem] = ()) -> list[Problem]:
        """All problems, with `more` of a later check, in the order of the file."""
        return sorted(map(self.placed, (*self.problems, *more)), key=_line)

    def file(self, more: Sequence[Problem] = ()) -> JobFile:
        """The job, when nothing is wrong with it; JobFileError with everything that is."""
        problems = self.in_order(more)
        errors = [problem for problem in problems if not problem.warning]
        warnings = [problem for problem in problems if problem.warning]
        if errors or self.job is None:
            raise JobFileError(self.path, errors, warnings)
        return JobFile(self.path, self.job, self.data, tuple(warnings))


def load_job(path: Path, overrides: Sequence[str] = ()) -> MARLJob:
    """The job that `path` describes, `spec.seed=1`-like overrides applied; JobFileError."""
    return read_job(path, overrides).job


def served_job(path: Path) -> tuple[MARLJob, list[str]]:
    """The job as a process reads it whom somebody has started for it, who has checked it and may be
    of a later release: without the fields that this one does not know, which are named.
    JobFileError."""
    known, unknown = known_part(parse(_text(path)).data)
    try:
        return _job(known), unknown
    except ValidationError:
        return load_job(path), []  # which says all that is wrong


def known_part(data: Any) -> tuple[Any, list[str]]:
    """`data` without the fields that this release does not know, and which these are."""
    try:
        _job(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        unknown = [tuple(one["loc"]) for one in found if one["type"] == "extra_forbidden"]
        return _without(data, unknown), [format_path(each) for each in unknown]
    return data, []


def known_values(data: Any) -> tuple[Any, list[str]]:
    """`data` without the words that are none of an enumeration of this release, and which these
    are, with their fields."""
    try:
        _job(data)
    except ValidationError as error:
        found = [one for one in error.errors(include_url=False) if one["type"] in ENUMERATIONS]
        words = {tuple(one["loc"]): one["input"] for one in found if isinstance(one["input"], str)}
        said = [f"{format_path(path)}: {show(word)}" for path, word in words.items()]
        return _without(data, words), said
    return data, []


def checked(data: Any) -> tuple[MARLJob | None, list[Problem]]:
    """The model if the schema holds, and the problems of schema and rules."""
    job, problems = None, []
    try:
        job = _job(data)
    except ValidationError as error:
        problems = explain(error.errors(include_url=False), data)
    found: set[FieldPath] = {problem.path for problem in problems}
    problems += [problem for problem in rules.check(data) if problem.path not in found]
    return job, problems


def read_job(path: Path, overrides: Sequence[str] = ()) -> JobFile:
    """Like `load_job`, with the document and the warnings."""
    return inspect_job(path, overrides).file()


def inspect_job(path: Path, overrides: Sequence[str] = ()) -> Inspection:
    """Everything that schema and rules say about a job file; JobFileError if it can't be read."""
    document = parse(_text(path))
    data, origins, found = apply_overrides(document.data, overrides)
    problems = [*document.problems, *found]
    job: MARLJob | None = None
    if isinstance(data, dict):
        refused = {problem.path for problem in problems}
        job, invalid = checked(data)
        problems += [problem for problem in invalid if problem.path not in refused]
    elif not problems:
        kind = "is empty" if data is None else "holds no mapping"
        problems.append(Problem((), kind, "a MARLJob has apiVersion, kind, metadata, spec"))
    return Inspection(path, data, job, tuple(problems), document, origins)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        says = "there is no such file"
    except UnicodeDecodeError:
        says = "is not UTF-8 text"
    except OSError as error:
        says = f"cannot be read: {error.strerror}"
    raise JobFileError(path, [Problem((), says)])


def _job(data: Any) -> MARLJob:
    """Strict JSON: "3" is no number and true no integer, as for an API server. ValidationError."""
    return MARLJob.model_validate_json(json.dumps(data), strict=True, by_alias=True, by_name=False)


def _without(data: Any, paths: Iterable[FieldPath]) -> Any:
    found = copy.deepcopy(data)
    for *parents, last in paths:
        node = found
        for part in parents:
            node = node[part]
        node.pop(last, None)  # by an alias of YAML it is the same node that stands elsewhere
    return found


def _line(problem: Problem) -> tuple[int, str]:
    words = problem.place.split()
    return (int(words[1]) if words and words[0] == "line" else 1 << 30, str(problem))
