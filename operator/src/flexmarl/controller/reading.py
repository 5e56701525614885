"""A MARLJob of the API server as our models, and what is wrong with it; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flexmarl.contracts.api import API_VERSION
from flexmarl.contracts.cluster_rules import check_for_cluster
from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.preparation import PACKED
from flexmarl.contracts.reading import checked, known_part, known_values
from flexmarl.controller.names import Manifest


class Read(NamedTuple):
    job: MARLJob | None
    problems: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    """Fields that were left out."""
    later: tuple[str, ...] = ()
    """Fields with a value that a later release has to understand, and that value: without them the
    job is not the one that was meant."""


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
    """The job, and its problems in words; a job with problems is not to be run. Neither fields nor
    values of enumerations that are not known here are problems: a later definition gives each job
    the defaults of its new ones, and who misspells one is told by the API server."""
    plain, unknown = known_part(document(manifest))
    plain, later = known_values(plain)
    job, problems = checked(plain)
    if later:  # what the rules say is of no account: they may be others by then
        return Read(job, (), tuple(unknown), tuple(later))
    found = {problem.path for problem in problems}
    problems += [one for one in check_for_cluster(plain) if one.path not in found]
    return Read(job, tuple(str(one) for one in problems if not one.warning), tuple(unknown))
