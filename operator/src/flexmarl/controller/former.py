"""What another controller, or another chart, has made of a job that still runs; pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.cel import FIXED
from flexmarl.controller.names import MADE_BY, Manifest

FILE = "job.yaml"
OF_THE_JOB = (
    "controller-uid", "job-name", "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
)  # fmt: skip
"""Labels that Kubernetes gives to the pods of one Job."""


def made_by(manifest: Mapping[str, Any]) -> str:
    return str(manifest["metadata"].get("annotations", {}).get(MADE_BY, ""))


def carried_on(manifest: Manifest, found: Manifest) -> Manifest:
    """The ConfigMap of the job's file: as it was `found`, but for what may change.

    Who reads it is older, or younger, than the definition that gives the job its defaults."""
    try:
        before = json.loads(found["data"][FILE])
        now = json.loads(manifest["data"][FILE])
        spec = {key: value for key, value in before["spec"].items() if key in FIXED}
        spec |= {key: value for key, value in now["spec"].items() if key not in FIXED}
        spec = {key: value for key, value in spec.items() if key in before["spec"] | _MAY_COME}
        if "pools" in spec:
            spec["pools"] = _scaled(before["spec"]["pools"], spec["pools"])
    except (AttributeError, KeyError, TypeError, ValueError):  # somebody else has written it
        return manifest
    annotations = {**manifest["metadata"].get("annotations", {}), MADE_BY: made_by(found)}
    file = json.dumps({**before, "spec": spec}, indent=2) + "\n"
    return {
        **manifest,
        "metadata": {**manifest["metadata"], "annotations": annotations},
        "data": {**manifest["data"], FILE: file},
    }


_MAY_COME = {"balancing": {}, "activeDeadlineSeconds": 0, "ttlSecondsAfterFinished": 0}
"""Fields that may change and that have no default: absent before, they may be there now."""


def _scaled(before: list[Manifest], now: list[Manifest]) -> list[Manifest]:
    counts = {pool["name"]: {key: pool[key] for key in ("min", "max")} for pool in now}
    return [{**pool, **counts[pool["name"]]} for pool in before]


def as_before(manifest: Manifest, found: Manifest) -> Manifest:
    """The workload, its pods as they are of `found`, which was made by another."""
    template = copy.deepcopy(found["spec"]["template"])
    template["metadata"].pop("creationTimestamp", None)
    for label in OF_THE_JOB:
        template["metadata"].get("labels", {}).pop(label, None)
    annotations = {**manifest["metadata"]["annotations"], MADE_BY: made_by(found)}
    return {
        **manifest,
        "metadata": {**manifest["metadata"], "annotations": annotations},
        "spec": {**manifest["spec"], "template": template},
    }
