"""Makes the cluster be what was rendered: applies what differs, deletes what is not rendered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import structlog

from flexmarl.controller.beforehand import name_is_free, pods_are_accepted
from flexmarl.controller.cache import WATCHED, Key, Objects, Place, key_of
from flexmarl.controller.cluster import Cluster, RefusedError, path_to
from flexmarl.controller.findings import no_gangs, refused
from flexmarl.controller.former import digest
from flexmarl.controller.making import Maker, is_note
from flexmarl.controller.names import (
    EVIDENCE,
    JOB_LABEL,
    MANAGED_BY,
    MANAGER,
    ROLE_LABEL,
    Manifest,
    reference,
)
from flexmarl.controller.observed import Finding
from flexmarl.controller.owners import belongs
from flexmarl.controller.render import WORKLOADS

AT_ONCE = 8
"""Requests of one job's look."""
YOUNG_SECONDS = 5.0
"""After an object was applied it may not be seen yet."""
ASK_SECONDS = 60.0
"""For so long what is neither watched nor listed counts as there."""
UNWATCHED = ("Service", "ConfigMap", "Secret", "ServiceAccount", "NetworkPolicy")
ASKED = ("PersistentVolumeClaim", "PodGroup")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Applied:
    digest: str
    generation: int
    version: str
    """Of the object in the API server."""
    path: str
    at: float
    """When it was last known to be there."""


class Applier:
    """Remembers what it applied, so that a look at a job that is as it should be costs nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._maker = cluster, Maker(cluster)
        self._applied: dict[tuple[Key, str, str], _Applied] = {}
        self._rendered: dict[Key, tuple[Hashable, list[tuple[str, str]]]] = {}
        """What a job's objects were rendered from, and which they are."""
        self._unfenced: dict[Key, set[str]] = {}
        """NetworkPolicies that are rendered no more and are still there."""
        self._cleaned: set[Key] = set()
        """Jobs of which nothing is left."""

    async def apply(
        self, key: Key, manifests: Sequence[Manifest], there: Objects, shaped: bool
    ) -> list[Finding]:
        """What could not be applied; nothing is, while a name is another's.

        `there`: what is the job's own; `shaped`: users have changed pods, so try first.
        """
        self._rendered.pop(key, None)
        self._cleaned.discard(key)
        todo = [one for one in manifests if self._differs(key, one, there)]
        new = [one for one in todo if self._never_seen(key, one, there)]
        if any(taken := await _each(self._named, new)):
            return [*chain(*taken)]
        pods = [one for one in todo if one["kind"] in WORKLOADS]
        tried = [one for one in pods if shaped and reference(one) not in there.children]
        if any(refusals := await _each(self._try, tried)):
            return [*chain(*refusals)]
        first = [one for one in todo if one["kind"] not in WORKLOADS]
        if any(refusals := await self._all(key, first, there)):
            return [*chain(*refusals)]  # no pod starts without its fence, its gang, its secrets
        if any(refusals := await self._all(key, pods, there)):
            return [*chain(*refusals)]
        for name in self._unfenced.pop(key, ()):
            found = await self._cluster.get("NetworkPolicy", key.namespace, name)
            if found is not None and belongs(found, _uid(there)):
                await self._delete(key, found)
        return []

    def holds(self, key: Key, source: Hashable, there: Objects) -> bool:
        """Whether everything rendered from the same `source` is as it was applied."""
        known, names = self._rendered.get(key, (None, []))
        same = known == source and key not in self._unfenced
        return same and not any(self._touched(key, *name, there) for name in names)

    def awaits(self, key: Key, there: Objects) -> bool:
        """Whether something that was applied is not seen yet: perhaps somebody has deleted it."""
        _, names = self._rendered.get(key, (None, []))
        return any(name[0] in WATCHED and name not in there.children for name in names)

    async def find(self, key: Key) -> None:
        """Ask for what nobody tells of, the claim and the gang; what is gone is applied again."""
        for at, known in [*self._applied.items()]:
            late = time.monotonic() - known.at >= ASK_SECONDS
            if at[0] == key and at[1] in ASKED and late:
                if await self._cluster.is_there(known.path):
                    self._applied[at] = replace(known, at=time.monotonic())
                else:
                    del self._applied[at]

    def remember(self, key: Key, source: Hashable, manifests: Iterable[Manifest]) -> None:
        """All of `manifests`, rendered from `source`, are applied."""
        self._rendered[key] = source, [reference(one) for one in manifests]

    def compare(self, kind: str, listed: Iterable[Manifest]) -> set[Key]:
        """Of objects that nobody watches: whose another has changed or deleted. At the next look
        they are applied again."""
        versions = {
            (key, kind, one["metadata"]["name"]): one["metadata"]["resourceVersion"]
            for one in listed
            if (key := key_of(kind, one)) is not None
        }
        changed = set()
        for at, known in list(self._applied.items()):
            young = time.monotonic() - known.at < YOUNG_SECONDS  # perhaps younger than the list
            if at[1] == kind and not young and versions.get(at) != known.version:
                del self._applied[at]
                changed.add(at[0])
        return changed | self._too_many(at for at in versions if kind == "NetworkPolicy")

    def _too_many(self, listed: Iterable[Place]) -> set[Key]:
        """Of NetworkPolicies: whose are there although an upgrade has switched them off."""
        found = set()
        for key, *at in listed:
            _, names = self._rendered.get(key, (None, None))
            if names is not None and tuple(at) not in names:
                self._unfenced.setdefault(key, set()).add(at[1])
                found.add(key)
        return found

    async def again(self, key: Key, there: Objects) -> None:
        """Make the orchestrator's Job anew, which the next look does once it is gone."""
        for found in there.of("Job"):
            log.info("the orchestrator tries again", name=found["metadata"]["name"])
            self._applied.pop((key, *reference(found)), None)
            await self._maker.replace(key, found)

    async def clear(self, key: Key, uid: str, there: Objects, gang: Iterable[Manifest]) -> None:
        """Delete every object that was made of the job, its `gang` too, but its claim and
        evidence. What pods need goes after the last of them: on their way out they are still fenced
        and find each other."""
        for one in there.of(*WORKLOADS):
            if "deletionTimestamp" not in one["metadata"]:
                await self._delete(key, one)
        self._rendered.pop(key, None)
        self._maker.forget(key)
        if there.of(*WORKLOADS, "Pod") or key in self._cleaned:
            return
        # Files of `flexmarl apply` are the job's own as well, but not made here.
        made = f"{MANAGED_BY}={MANAGER},{JOB_LABEL}={key.name},{ROLE_LABEL}!={EVIDENCE}"
        for kind in UNWATCHED:
            for one in await self._cluster.listed(kind, key.namespace, labels=made):
                if belongs(one, uid):
                    await self._delete(key, one)
        for group in gang:
            if not await self._named(group):
                await self._cluster.remove(group)
        self.forget(key)
        self._cleaned.add(key)

    def forget(self, key: Key) -> None:
        """Nothing of the job is known to be applied any more."""
        for known in [known for known in self._applied if known[0] == key]:
            del self._applied[known]
        self._rendered.pop(key, None)
        self._maker.forget(key)
        self._unfenced.pop(key, None)
        self._cleaned.discard(key)

    async def _all(
        self, key: Key, manifests: Sequence[Manifest], there: Objects
    ) -> list[list[Finding]]:
        async def one(manifest: Manifest) -> list[Finding]:
            return await self._one(key, manifest, there)

        return await _each(one, manifests)

    def _differs(self, key: Key, manifest: Manifest, there: Objects) -> bool:
        kind, name = reference(manifest)
        known = self._applied.get((key, kind, name))
        if known is None or known.digest != digest(manifest):
            return True
        return self._touched(key, kind, name, there)

    def _never_seen(self, key: Key, manifest: Manifest, there: Objects) -> bool:
        """Whether somebody else may have an object of that name."""
        at = reference(manifest)
        known = at in there.children or (key, *at) in self._applied
        return not known and not is_note(manifest)

    def _touched(self, key: Key, kind: str, name: str, there: Objects) -> bool:
        """Whether it may be other than it was applied."""
        known = self._applied.get((key, kind, name))
        if known is None:
            return True
        found = there.children.get((kind, name))
        if kind in WATCHED and found is None:  # just made and not seen yet, or deleted by somebody
            return time.monotonic() - known.at > YOUNG_SECONDS
        return found is not None and found["metadata"].get("generation", 0) > known.generation

    async def _one(self, key: Key, manifest: Manifest, there: Objects) -> list[Finding]:
        at = kind, name = reference(manifest)
        try:
            first = (key, *at) not in self._applied
            made = await self._maker.made(key, manifest, there, first=first)
        except RefusedError as error:
            if kind == "PodGroup" and error.status == 404:
                return [no_gangs(manifest["apiVersion"])]
            if error.passing:
                raise
            log.warning("refused", kind=kind, name=name, error=str(error))
            if is_note(manifest):  # a pod that lacks the claim says so
                return []
            return [refused(f"{kind} {name}", str(error))]
        if made is None:
            self._applied.pop((key, *at), None)
            return []
        self._applied[key, *at] = _Applied(
            digest(manifest),
            int(made["metadata"].get("generation", 0)),
            made["metadata"]["resourceVersion"],
            path_to(manifest),
            time.monotonic(),
        )
        return []

    async def _delete(self, key: Key, one: Manifest) -> None:
        about = one["metadata"]
        self._applied.pop((key, one["kind"], about["name"]), None)
        await self._cluster.delete(one["kind"], key.namespace, about["name"], about["uid"])

    async def _named(self, manifest: Manifest) -> list[Finding]:
        return await name_is_free(self._cluster, manifest)

    async def _try(self, manifest: Manifest) -> list[Finding]:
        return await pods_are_accepted(self._cluster, manifest)


async def _each(
    act: Callable[[Manifest], Coroutine[Any, Any, list[Finding]]], manifests: Sequence[Manifest]
) -> list[list[Finding]]:
    """What `act` finds for each, some at once; all are done before the first error is raised."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(manifest: Manifest) -> list[Finding]:
        async with gate:
            return await act(manifest)

    done = await asyncio.gather(*(one(each) for each in manifests), return_exceptions=True)
    found = []
    for result in done:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found


def _uid(there: Objects) -> str:
    assert there.job is not None
    return str(there.job["metadata"]["uid"])
