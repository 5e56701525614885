"""The latest objects that the watches brought, by job: what a look at a job reads.

Events of one object come in order, those of its namesakes do not, and answers to our own requests
come in between: the larger version counts. A watch may end unnoticed and miss something; `compare`
says what, given what the API server lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from flexmarl.controller.names import JOB_LABEL, Manifest

WATCHED = ("MARLJob", "Pod", "Deployment", "StatefulSet", "Job")
DROPPED = ("managedFields",)
"""Of metadata: large, and nobody looks at it."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A job."""

    namespace: str
    name: str


Place: TypeAlias = tuple[Key, str, str]
"""Job, kind and name of an object."""


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
        self._moved: set[Place] = set()
        """What was told of since `begin`."""

    def jobs(self) -> list[Key]:
        return list(self._jobs)

    @property
    def size(self) -> int:
        """Objects."""
        every = self._jobs.values()
        return sum(len(one.children) + (one.job is not None) for one in every)

    def objects(self, key: Key) -> Objects:
        return self._jobs.get(key) or Objects()

    def put(self, kind: str, manifest: Mapping[str, Any]) -> Key | None:
        """Whose job changed by it; None: it is nobody's, or no newer than what is known."""
        place = _place(kind, manifest)
        if place is None:
            return None
        known = self._known(place)
        if known is not None and not _newer(manifest, known):
            return None
        return self._store(place, manifest)

    def drop(self, kind: str, manifest: Mapping[str, Any]) -> Key | None:
        """Whose job changed by it; None: it is not known, perhaps a younger one of its name is."""
        place = _place(kind, manifest)
        if place is None:
            return None
        self._moved.add(place)
        known = self._known(place)
        if known is None:
            return None
        same = known["metadata"]["uid"] == manifest["metadata"]["uid"]
        return self._remove(place) if same or _newer(manifest, known) else None

    def written(self, manifest: Mapping[str, Any]) -> None:
        """A job with the status that was just written, in place of what is known.

        When its spec has changed meanwhile, that is left to the watch, which then names the job.
        """
        place = _place("MARLJob", manifest)
        known = self._known(place) if place else None
        if place is None or known is None:
            return
        same = all(
            known["metadata"].get(each) == manifest["metadata"].get(each)
            for each in ("uid", "generation")
        )
        if same and _newer(manifest, known):
            self._store(place, manifest)

    def begin(self) -> None:
        """A list is about to be read: what is told of from now on may be younger."""
        self._moved.clear()

    def compare(
        self, kind: str, listed: Iterable[Mapping[str, Any]]
    ) -> tuple[set[Key], set[Place]]:
        """Drop what is not among `listed` (metadata will do), which was read after `begin`.

        Whose jobs lost something, and what of `listed` is unknown here, or known otherwise.
        """
        versions = {
            place: _version(item)
            for item in listed
            if (place := _place(kind, item)) is not None and place not in self._moved
        }
        lost = set()
        for place in list(self._places(kind)):
            if place not in versions and place not in self._moved:
                lost.add(self._remove(place))
        other = set()
        for place, version in versions.items():
            known = self._known(place)
            if known is None or _version(known) != version:
                other.add(place)
        return lost, other

    def mend(self, kind: str, manifest: Mapping[str, Any]) -> Key | None:
        """Put what was read after `begin`; whose job changed by it. None: something was told of it
        meanwhile."""
        place = _place(kind, manifest)
        return None if place is None or place in self._moved else self._store(place, manifest)

    def _places(self, kind: str) -> Iterator[Place]:
        for key, objects in self._jobs.items():
            if kind == "MARLJob" and objects.job is not None:
                yield key, kind, key.name
            yield from ((key, *child) for child in objects.children if child[0] == kind)

    def _known(self, place: Place) -> Manifest | None:
        key, *child = place
        objects = self.objects(key)
        if child[0] == "MARLJob":
            return objects.job
        return objects.children.get((child[0], child[1]))

    def _store(self, place: Place, manifest: Mapping[str, Any]) -> Key:
        key, kind, name = place
        self._moved.add(place)
        metadata = {k: v for k, v in manifest["metadata"].items() if k not in DROPPED}
        kept = {**manifest, "kind": kind, "metadata": metadata}
        objects = self._jobs.setdefault(key, Objects())
        if kind == "MARLJob":
            objects.job = kept
        else:
            objects.children[kind, name] = kept
        return key

    def _remove(self, place: Place) -> Key:
        key, kind, name = place
        objects = self._jobs[key]
        if kind == "MARLJob":
            objects.job = None
        else:
            del objects.children[kind, name]
        if objects.job is None and not objects.children:
            del self._jobs[key]
        return key


def key_of(kind: str, manifest: Mapping[str, Any]) -> Key | None:
    """The job that an object belongs to; None: to none."""
    metadata = manifest["metadata"]
    name = metadata["name"] if kind == "MARLJob" else metadata.get("labels", {}).get(JOB_LABEL)
    return Key(metadata["namespace"], name) if name else None


def _place(kind: str, manifest: Mapping[str, Any]) -> Place | None:
    key = key_of(kind, manifest)
    return None if key is None else (key, kind, manifest["metadata"]["name"])


def _newer(manifest: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """API servers count their versions."""
    one, other = _version(manifest), _version(known)
    return int(one) > int(other) if one.isdigit() and other.isdigit() else one != other


def _version(manifest: Mapping[str, Any]) -> str:
    return str(manifest["metadata"]["resourceVersion"])
