"""Read a MARLJob from YAML: the one way in for the command line and for every process.

Every problem of a file is reported at once, as `JobFileError`; pydantic's own errors never get out.
Light on purpose: nothing here imports more than PyYAML and pydantic.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flexmarl.contracts import rules
from flexmarl.contracts.documents import parse
from flexmarl.contracts.explain import explain
from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.overrides import apply_overrides
from flexmarl.contracts.problems import FieldPath, JobFileError, Problem

__all__ = ["JobFile", "JobFileError", "Problem", "load_job", "read_job"]


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job that holds, and what its author should hear about it."""

    path: Path
    job: MARLJob
    document: dict[str, Any]
    """As written, overrides applied: what a run keeps as its job file."""
    warnings: tuple[Problem, ...]


def load_job(path: Path, overrides: Sequence[str] = ()) -> MARLJob:
    """The job that `path` describes, `spec.seed=1`-like overrides applied; JobFileError."""
    return read_job(path, overrides).job


def read_job(path: Path, overrides: Sequence[str] = ()) -> JobFile:
    """Like `load_job`, with the document and the warnings."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise JobFileError(path, [Problem((), "there is no such file")]) from None
    except UnicodeDecodeError:
        raise JobFileError(path, [Problem((), "is not UTF-8 text")]) from None
    except OSError as error:
        says = f"cannot be read: {error.strerror}"
        raise JobFileError(path, [Problem((), says)]) from None
    document = parse(text)
    data, origins, problems = apply_overrides(document.data, overrides)
    problems = [*document.problems, *problems]
    job: MARLJob | None = None
    if not isinstance(data, dict):
        if not problems:
            kind = "is empty" if data is None else "holds no mapping"
            problems.append(Problem((), kind, "a MARLJob has apiVersion, kind, metadata, spec"))
    else:
        refused = {problem.path for problem in problems}
        job, invalid = _validate(data)
        problems += [problem for problem in invalid if problem.path not in refused]

    def placed(problem: Problem) -> Problem:
        if problem.place:
            return problem
        for end in range(len(problem.path), 0, -1):
            if problem.path[:end] in origins:
                return replace(problem, place=origins[problem.path[:end]])
        return replace(problem, place=document.place(problem.path))

    problems = sorted(map(placed, problems), key=_line)
    errors = [problem for problem in problems if not problem.warning]
    warnings = [problem for problem in problems if problem.warning]
    if errors or job is None:
        raise JobFileError(path, errors, warnings)
    return JobFile(path, job, data, tuple(warnings))


def _validate(data: dict[str, Any]) -> tuple[MARLJob | None, list[Problem]]:
    """The model if the schema holds, and the problems of schema and rules."""
    job, problems = None, []
    try:
        # Strict JSON: "3" is no number and true no integer, as for an API server.
        job = MARLJob.model_validate_json(
            json.dumps(data), strict=True, by_alias=True, by_name=False
        )
    except ValidationError as error:
        problems = explain(error.errors(include_url=False), data)
    found: set[FieldPath] = {problem.path for problem in problems}
    problems += [problem for problem in rules.check(data) if problem.path not in found]
    return job, problems


def _line(problem: Problem) -> tuple[int, str]:
    words = problem.place.split()
    return (int(words[1]) if words and words[0] == "line" else 1 << 30, str(problem))
