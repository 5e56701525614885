"""What was made of a running job by other code, of other images or by another definition; pure.

A digest of what is not to change of an object tells, so whatever decides that counts.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.cel import FIXED
from flexmarl.controller.names import MADE_AS, Manifest

FILE = "job.yaml"
OF_THE_JOB = (
    "controller-uid", "job-name", "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
)  # fmt: skip
"""Labels that Kubernetes gives to the pods of one Job."""


def digest(what: Any) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def is_other(found: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Whether `found` was made otherwise than `manifest` is now."""
    return _made_as(found) != _made_as(manifest)


def lasting(spec: Mapping[str, Any]) -> Manifest:
    """What stays of a job's spec while it runs: values of what is fixed, the names of the rest."""
    found = {key: spec[key] if key in FIXED else None for key in spec if key not in _MAY_COME}
    if "pools" in spec:
        found["pools"] = [
            {key: value for key, value in pool.items() if key not in ("min", "max")}
            for pool in spec["pools"]
        ]
    return found


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
    annotations = {**manifest["metadata"].get("annotations", {}), MADE_AS: _made_as(found)}
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
    annotations = {**manifest["metadata"]["annotations"], MADE_AS: _made_as(found)}
    return {
        **manifest,
        "metadata": {**manifest["metadata"], "annotations": annotations},
        "spec": {**manifest["spec"], "template": template},
    }


def _made_as(manifest: Mapping[str, Any]) -> str:
    return str(manifest["metadata"].get("annotations", {}).get(MADE_AS, ""))
