"""What is asked of the API server before anything of a job is applied."""

from __future__ import annotations

import re

import structlog

from flexmarl.controller.cluster import Cluster, RefusedError, path_to
from flexmarl.controller.findings import claim_differs, name_taken, refused
from flexmarl.controller.names import JOB_LABEL, POOL_LABEL, Manifest, reference
from flexmarl.controller.observed import Finding
from flexmarl.controller.owners import controller_of
from flexmarl.controller.render.access import claim_lacks

OF_OTHERS = re.compile(r"webhook|dry.?run|denied", re.IGNORECASE)
"""In the words of a refusal: it is not the template's fault, and may pass."""

OF_POOLS = {
    ".tolerations": "tolerations", ".nodeSelector": "nodeSelector", ".resources": "gpuResource",
}  # fmt: skip
"""Part of a pod's spec -> the field of a pool that it comes from."""
TEMPLATES = "the template of the role or pool"

log = structlog.get_logger()


async def name_is_free(cluster: Cluster, manifest: Manifest) -> list[Finding]:
    """Nothing, or who has the object's name. RefusedError: it cannot be known now."""
    try:
        found = await cluster.call("GET", path_to(manifest))
    except RefusedError as error:
        if error.status == 404:
            return []
        return [_said(manifest, error)]
    owner, wanted = controller_of(found), controller_of(manifest)
    kept = not owner and manifest["kind"] == "PersistentVolumeClaim"
    going = "deletionTimestamp" in found["metadata"]
    if kept and not going and _job_of(found) == _job_of(manifest):  # to be used again
        lacks = claim_lacks(manifest, found)
        return [claim_differs(manifest["metadata"]["name"], lacks)] if lacks else []
    if owner.get("uid") == wanted.get("uid") and not kept:
        return []
    return [name_taken(" ".join(reference(manifest)), found, _job_of(manifest))]


async def pods_are_accepted(cluster: Cluster, manifest: Manifest) -> list[Finding]:
    """Nothing, or why the API server takes no such object; fatal when it never will.
    RefusedError: it cannot be known now.

    By POST: an apply that does not fit the schema is answered as if the server were broken."""
    try:
        await cluster.try_to_make(manifest)
    except RefusedError as error:
        if error.status == 409:  # there is one, which is not seen yet
            return []
        text = str(error)
        if error.status in (400, 422) and not OF_OTHERS.search(text):
            text = f"{' '.join(reference(manifest))}: {text}"
            says = f"{text}; mend {_field(manifest, text)}"
            return [Finding("TemplateInvalid", says, fatal=True)]
        return [_said(manifest, error)]
    return []


def _field(manifest: Manifest, said: str) -> str:
    """Where the spec has what is wrong with a workload."""
    pool = manifest["metadata"].get("labels", {}).get(POOL_LABEL)
    fields = [name for part, name in OF_POOLS.items() if part in said]
    return f"{fields[0]} of pool {pool}, or a template" if pool and fields else TEMPLATES


def _said(manifest: Manifest, error: RefusedError) -> Finding:
    if error.passing:
        raise error
    kind, name = reference(manifest)
    log.warning("refused", kind=kind, name=name, error=str(error))
    return refused(f"{kind} {name}", str(error))


def _job_of(manifest: Manifest) -> str:
    return str(manifest["metadata"].get("labels", {}).get(JOB_LABEL, ""))
