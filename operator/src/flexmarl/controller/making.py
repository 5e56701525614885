"""How each kind of object is made: applied, made once, or kept as it is but for what may change."""

from __future__ import annotations

import structlog

from flexmarl.controller.cache import Key, Objects
from flexmarl.controller.cluster import Cluster, RefusedError, path_to
from flexmarl.controller.former import as_before, carried_on, is_other
from flexmarl.controller.metrics import APPLIES
from flexmarl.controller.names import STEPS, Manifest, reference
from flexmarl.controller.render import WORKLOADS
from flexmarl.controller.render.gang import size

log = structlog.get_logger()


class Maker:
    """Remembers only the orchestrators' Jobs that are to be made anew, with the same pods."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._former: dict[Key, Manifest] = {}

    async def made(
        self, key: Key, manifest: Manifest, there: Objects, *, first: bool
    ) -> Manifest | None:
        """The object as it is then; None: it is made anew once it is gone. `first`: nothing is
        known of it. RefusedError."""
        kind, name = reference(manifest)
        found = there.children.get((kind, name)) if kind in WORKLOADS else None
        if found is not None:
            if "deletionTimestamp" in found["metadata"]:
                return None
            steps = manifest["metadata"]["annotations"].get(STEPS)
            if kind == "Job" and found["metadata"].get("annotations", {}).get(STEPS) != steps:
                log.info("the orchestrator starts again", name=name, steps=steps)
                await self.replace(key, found)
                return None
            if is_other(found, manifest):
                return await self._only_scaled(manifest, found)
        made = await self._made(key, manifest, there, first=first)
        APPLIES.labels(kind).inc()
        return made

    async def replace(self, key: Key, found: Manifest) -> None:
        """Delete an orchestrator's Job, so that one with the same pods is made."""
        self._former[key], about = found, found["metadata"]
        await self._cluster.delete(found["kind"], key.namespace, about["name"], about["uid"])

    def forget(self, key: Key) -> None:
        self._former.pop(key, None)

    async def _made(self, key: Key, manifest: Manifest, there: Objects, *, first: bool) -> Manifest:
        match manifest["kind"]:
            case "PodGroup":
                return await self._gang(manifest, there)
            case "PersistentVolumeClaim":
                return await self._claim(manifest)
            case "ConfigMap":
                return await self._file(manifest, there)
            case "Secret" if first:
                return await self._secret(manifest)
            case "Job" if (former := self._former.get(key)) and is_other(former, manifest):
                return await self._cluster.apply(as_before(manifest, former))
            case _:
                return await self._cluster.apply(manifest)

    async def _file(self, manifest: Manifest, there: Objects) -> Manifest:
        """While there are pods that read it, the job's file stays what it was, but for what may
        change."""
        if there.of(*WORKLOADS):
            found = await self._cluster.get("ConfigMap", *_place(manifest))
            if found is not None and is_other(found, manifest):
                return await self._cluster.apply(carried_on(manifest, found))
        return await self._cluster.apply(manifest)

    async def _secret(self, manifest: Manifest) -> Manifest:
        """Made before it is applied: another controller, on its way out, may do the same, and pods
        have the token that was there when they started."""
        found, token = await self._cluster.made(manifest), manifest["data"]["token"]
        if found.get("data", {}).get("token", token) != token:
            raise RefusedError(409, "Conflict", f"{reference(manifest)}: another has made it")
        return await self._cluster.apply(manifest)

    async def _gang(self, manifest: Manifest, there: Objects) -> Manifest:
        """Made once: Kubernetes lets nobody change the size of its groups. One of another size is
        made anew while there are no pods that it has let go."""
        found = await self._cluster.made(manifest)
        if size(found) != size(manifest) and not there.of("Pod"):
            await self._cluster.remove(manifest)
            found = await self._cluster.made(manifest)
        if "deletionTimestamp" in found["metadata"]:  # of pods that are on their way out
            raise RefusedError(409, "Conflict", f"{reference(manifest)} is being deleted")
        return found

    async def _claim(self, manifest: Manifest) -> Manifest:
        """Made once: what a claim asks for can never be changed. Kept, it says how it is read now,
        not how an earlier installation would have read it."""
        notes = manifest["metadata"]["annotations"]
        if not is_note(manifest):
            found = await self._cluster.made(manifest)
            if notes.items() <= found["metadata"].get("annotations", {}).items():
                return found
        body, content = {"metadata": {"annotations": notes}}, "application/merge-patch+json"
        return await self._cluster.call("PATCH", path_to(manifest), body=body, content=content)

    async def _only_scaled(self, manifest: Manifest, found: Manifest) -> Manifest:
        """Other code, or another chart, made it otherwise: it stays until its job ends, but for its
        number of pods."""
        kind, wanted = manifest["kind"], manifest["spec"].get("replicas")
        if kind == "Job" or wanted == found["spec"].get("replicas", 1):
            return found
        return await self._cluster.scale(kind, *_place(manifest), wanted)


def is_note(manifest: Manifest) -> bool:
    """On a claim of the user's, which is not made where it lacks."""
    return manifest["kind"] == "PersistentVolumeClaim" and "spec" not in manifest


def _place(manifest: Manifest) -> tuple[str, str]:
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]
