"""The latest objects that the watches brought, by job: what a look at a job reads.

A watch may end unnoticed and miss a deletion: `resync` compares with what the API server lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flexmarl.controller.names import JOB_LABEL, Manifest

WATCHED = ("MARLJob", "Pod", "Deployment", "StatefulSet", "Job")
DROPPED = ("managedFields",)
"""Of metadata: large, and nobody looks at it."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A job."""

    namespace: str
    name: str


@dataclass(slots=True)
class Objects:
    """What there is of one job."""

    job: Manifest | None = None
    children: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    """By kind and name."""

    def of(self, *kinds: str) -> list[Manifest]:
        return [child for (kind, _), child in sorted(self.children.items()) if kind in kinds]


class Cache:
    def __init__(self) -> None:
        self._jobs: dict[Key, Objects] = {}

    def jobs(self) -> list[Key]:
        return sorted(self._jobs)

    def objects(self, key: Key) -> Objects:
        return self._jobs.get(key) or Objects()

    def put(self, kind: str, manifest: Mapping[str, Any]) -> Key | None:
        """Whose job it belongs to; None: to none."""
        key = key_of(kind, manifest)
        if key is None:
            return None
        metadata = {k: v for k, v in manifest["metadata"].items() if k not in DROPPED}
        kept = {**manifest, "kind": kind, "metadata": metadata}
        objects = self._jobs.setdefault(key, Objects())
        if kind == "MARLJob":
            objects.job = kept
        else:
            objects.children[kind, metadata["name"]] = kept
        return key

    def drop(self, kind: str, manifest: Mapping[str, Any]) -> Key | None:
        key = key_of(kind, manifest)
        objects = self._jobs.get(key) if key else None
        if key is None or objects is None:
            return None
        if kind == "MARLJob":
            objects.job = None
        else:
            objects.children.pop((kind, manifest["metadata"]["name"]), None)
        if objects.job is None and not objects.children:
            del self._jobs[key]
        return key

    def resync(self, kind: str, listed: Iterable[Mapping[str, Any]]) -> tuple[set[Key], bool]:
        """Drop what is not among `listed` (metadata will do). Whose jobs changed, and whether
        something of `listed` is newer or unknown here, so that it has to be read in whole."""
        versions = {
            (key, item["metadata"]["name"]): item["metadata"]["resourceVersion"]
            for item in listed
            if (key := key_of(kind, item)) is not None
        }
        changed, known = set(), {}
        for key, objects in list(self._jobs.items()):
            mine = [objects.job] if kind == "MARLJob" else objects.of(kind)
            for one in mine:
                if one is None:
                    continue
                at = key, one["metadata"]["name"]
                known[at] = one["metadata"]["resourceVersion"]
                if at not in versions:
                    self.drop(kind, one)
                    changed.add(key)
        return changed, any(known.get(at) != version for at, version in versions.items())


def key_of(kind: str, manifest: Mapping[str, Any]) -> Key | None:
    metadata = manifest["metadata"]
    name = metadata["name"] if kind == "MARLJob" else metadata.get("labels", {}).get(JOB_LABEL)
    return Key(metadata["namespace"], name) if name else None
