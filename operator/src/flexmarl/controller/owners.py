"""Which objects are a job's own; pure.

A name or a label does not tell: an earlier job of the name may still be on its way out, and anybody
may label a pod, or have an object of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flexmarl.controller.cache import Objects
from flexmarl.controller.names import UID_LABEL


def controller_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The reference to who takes care of an object; empty when nobody does."""
    references = manifest["metadata"].get("ownerReferences", ())
    return next((one for one in references if one.get("controller")), {})


def belongs(manifest: Mapping[str, Any], uid: str) -> bool:
    """To the job of that uid. Pods are owned by what makes them, so the job is one of their
    labels."""
    if manifest["kind"] == "Pod":
        return bool(manifest["metadata"].get("labels", {}).get(UID_LABEL) == uid)
    return controller_of(manifest).get("uid") == uid


def own(there: Objects) -> Objects:
    """The job and what is its own of what bears its name."""
    if there.job is None:
        return there
    uid = there.job["metadata"]["uid"]
    return Objects(there.job, {at: one for at, one in there.children.items() if belongs(one, uid)})
