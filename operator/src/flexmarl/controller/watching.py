"""kopf's part: it watches our objects and tells of every change.

Nothing of it that would put a finalizer or an annotation on anything is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import kopf

from flexmarl.controller.names import JOB_LABEL

RESOURCES = {
    "MARLJob": ("flexmarl.io/v1alpha1", "marljobs"),
    "Pod": ("v1", "pods"),
    "Deployment": ("apps/v1", "deployments"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "Job": ("batch/v1", "jobs"),
}
INACTIVITY_SECONDS = 75.0
"""A watch that says nothing for so long is opened anew; the API server speaks once a minute."""
PAGE = 500
"""Objects that are read at once."""


class _NoDifferences(kopf.DiffBaseStorage):
    """kopf copies every object of every event, three times, for what changed of it. Nobody asks:
    that was most of what the controller did."""

    def build(
        self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None
    ) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        return None


def watching(
    registry: kopf.OperatorRegistry, tell: Callable[[str, Mapping[str, Any]], None]
) -> None:
    """Have kopf tell of every change of our objects."""
    _login(registry)
    for kind, resource in RESOURCES.items():

        async def changed(event: Mapping[str, Any], kind: str = kind, **_: Any) -> None:
            tell(kind, {"type": event["type"], "object": dict(event["object"])})

        kopf.on.event(*resource, id=f"wake-{kind.lower()}", registry=registry)(changed)


def kopf_settings() -> kopf.OperatorSettings:
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.scanning.disabled = True
    found.watching.inactivity_timeout = INACTIVITY_SECONDS
    found.watching.chunk_size = PAGE
    for kind, resource in RESOURCES.items():
        if kind != "MARLJob":  # of the others the API server sends ours alone
            found.watching.label_selectors[resource] = JOB_LABEL
    found.persistence.diffbase_storage = _NoDifferences()
    return found


def _login(registry: kopf.OperatorRegistry) -> None:
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        found: kopf.ConnectionInfo | None = kopf.login_with_service_account(**arguments)
        return found or kopf.login_with_kubeconfig(**arguments)

    kopf.on.login(registry=registry)(login)
