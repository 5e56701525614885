"""A MARLJob of the API server as our models, and what is wrong with it; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from pydantic import ValidationError

from flexmarl.contracts import rules
from flexmarl.contracts.api import API_VERSION
from flexmarl.contracts.cluster_rules import check_for_cluster
from flexmarl.contracts.explain import explain
from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.preparation import PACKED
from flexmarl.controller.names import Manifest

Read: TypeAlias = tuple[MARLJob | None, tuple[str, ...]]


def document(manifest: Mapping[str, Any]) -> Manifest:
    """As pods read it: what the user wrote, with the API server's defaults."""
    metadata = manifest["metadata"]
    about = {"name": metadata["name"], "namespace": metadata["namespace"]}
    if packed := metadata.get("annotations", {}).get(PACKED):
        about["annotations"] = {PACKED: packed}
    return {
        "apiVersion": API_VERSION,
        "kind": "MARLJob",
        "metadata": about,
        "spec": manifest["spec"],
    }


def read(manifest: Mapping[str, Any]) -> Read:
    """The job, and its problems in words; a job with problems is not to be run."""
    plain = document(manifest)
    job, problems = None, []
    try:
        job = MARLJob.model_validate_json(
            json.dumps(plain), strict=True, by_alias=True, by_name=False
        )
    except ValidationError as error:
        problems = explain(error.errors(include_url=False), plain)
    found = {problem.path for problem in problems}
    broken = (*rules.check(plain), *check_for_cluster(plain))
    problems += [problem for problem in broken if problem.path not in found]
    return job, tuple(str(problem) for problem in problems if not problem.warning)
