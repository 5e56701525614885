"""What is asked about a job beyond what is watched: only when something is wrong, or takes long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import structlog

from flexmarl.contracts.preparation import CONTAINER
from flexmarl.controller.cache import Key
from flexmarl.controller.cluster import Cluster, RefusedError
from flexmarl.controller.errands import Errand, Errands
from flexmarl.controller.nodes import doubtful
from flexmarl.controller.observed import Observed, Pod
from flexmarl.controller.placing import INSUFFICIENT
from flexmarl.controller.preparation import asked, how_far
from flexmarl.controller.troubles import Troubles

MOUNT_SECONDS = 30.0
"""After so long a pod's events are asked why nothing is set up for it on its node."""
FETCH_SECONDS = 15.0
"""For so long it holds how far a job's pods are, so that its status is not written all the time."""
LOG_SECONDS, LOG_LINES, LOG_BYTES = 5.0, 20, 1 << 16

log = structlog.get_logger()


class Questions:
    def __init__(self, cluster: Cluster, namespaces: Sequence[str], errands: Errands) -> None:
        self._cluster, self._troubles = cluster, Troubles(cluster, namespaces)
        self._errands = errands
        self._far: dict[str, tuple[float, Mapping[str, str]]] = {}
        """By uid of a job: until when it holds, and how far each pod is, by its uid."""

    async def answered(self, key: Key, uid: str, seen: Observed) -> Observed:
        """With what only the API server knows of pods that lack, find no node or are not ready, if
        it says so."""
        try:
            seen = await self._troubled(key, seen)
        except RefusedError as error:
            log.warning("not told why pods lack", namespace=key.namespace, error=str(error))
        if pods := asked(seen):
            return replace(seen, fetches=self._fetches(key, uid, pods))
        self.forget(uid)
        return seen

    def forget(self, uid: str) -> None:
        self._far.pop(uid, None)

    async def _troubled(self, key: Key, seen: Observed) -> Observed:
        """RefusedError."""
        if any(one.silent for one in seen.workloads):
            said = await self._troubles.failures(key.namespace)
            workloads = (
                replace(one, trouble=said.get(one.uid, "")) if one.silent else one
                for one in seen.workloads
            )
            seen = replace(seen, workloads=tuple(workloads))
        if any(0 < pod.unstarted_since < seen.now - MOUNT_SECONDS for pod in seen.pods):
            said = await self._troubles.unmounted(key.namespace)
            pods = (
                replace(pod, unmounted=said.get(pod.uid, "")) if pod.unstarted_since else pod
                for pod in seen.pods
            )
            seen = replace(seen, pods=tuple(pods))
        if any(INSUFFICIENT.search(pod.unschedulable) for pod in seen.pods):
            if not self._troubles.counted:
                self._errands.begin(Errand.ROOMS, key, self._count)
            seen = replace(seen, rooms=self._troubles.rooms)
        if names := doubtful(seen):
            seen = replace(seen, nodes=await self._troubles.nodes(names))
        return seen

    async def _count(self) -> bool:
        try:
            await self._troubles.count()
        except RefusedError as error:
            log.warning("cannot count what nodes have left", error=str(error))
            return False
        return True

    def _fetches(self, key: Key, uid: str, pods: Sequence[Pod]) -> Mapping[str, str]:
        """By their logs: pods have nobody whom they could tell. What was read last."""
        until, known = self._far.setdefault(uid, (0.0, {}))
        if time.monotonic() >= until:
            self._errands.begin(Errand.FETCHES, key, partial(self._read, key, uid, pods))
        return known

    async def _read(self, key: Key, uid: str, pods: Sequence[Pod]) -> bool:
        logs = await asyncio.gather(*(self._log(key, pod) for pod in pods))
        found = {pod.uid: how_far(said) for pod, said in zip(pods, logs, strict=True)}
        if uid not in self._far:  # nobody asks any more
            return False
        _, known = self._far[uid]
        self._far[uid] = time.monotonic() + FETCH_SECONDS, found
        return found != known

    async def _log(self, key: Key, pod: Pod) -> bytes:
        return await self._cluster.log(
            key.namespace,
            pod.name,
            CONTAINER,
            previous=False,
            lines=LOG_LINES,
            most=LOG_BYTES,
            seconds=LOG_SECONDS,
        )
