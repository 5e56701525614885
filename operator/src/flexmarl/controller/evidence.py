"""What stays of a job's pods when they are gone: the end of what each said, in a ConfigMap.

Nothing here may hold pods back: what cannot be read, or kept, is left out.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from flexmarl.controller.cache import Key, Objects
from flexmarl.controller.cluster import Cluster, RefusedError
from flexmarl.controller.names import (
    EVIDENCE,
    MAIN,
    ROLE_LABEL,
    ROLES,
    Manifest,
    child,
    labels,
    owner,
)
from flexmarl.controller.owners import controller_of

LINES, FEW_LINES = 400, 20
MOST_BYTES = 900_000
"""Of a ConfigMap; the API server takes 1 MiB."""
READ_BYTES = 1 << 20
"""Of one log: a kubelet that is given a limit leaves out the end, so it should not come to that."""
MOST_LOGS = 64
FAILED_PODS = 5
"""Of one role, those that failed last: an orchestrator may have tried a hundred times."""
AT_ONCE = 8
SECONDS, LOG_SECONDS = 20.0, 10.0
"""For all logs, and for one: nodes may be gone."""
PATIENCE_SECONDS = 30.0
"""After its end a job's pods are held for so long if the API server does not take the evidence."""
_CONTROLS = dict.fromkeys(each for each in range(32) if chr(each) not in "\t\n")
"""Each would be six characters of a request."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Log:
    """Of one life of a container."""

    pod: str
    container: str
    previous: bool
    failed: bool
    role: str = ""

    @property
    def entry(self) -> str:
        """Of the ConfigMap."""
        container = "" if self.container == MAIN else f".{self.container}"
        return f"{self.pod}{container}{'.previous' if self.previous else ''}.log"


class Evidence:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._settled: set[str] = set()
        """Uids of jobs for which it is kept or given up."""

    def settled(self, uid: str) -> bool:
        return uid in self._settled

    async def keep(self, key: Key, uid: str, there: Objects, *, last_try: bool) -> bool:
        """Whether that is settled; False: not now, and this is not the last try."""
        try:
            await self._keep(key, uid, there)
        except RefusedError as error:
            log.warning("no evidence", namespace=key.namespace, name=key.name, error=str(error))
            if error.passing and not last_try:
                return False
        self._settled.add(uid)
        return True

    def forget(self, uid: str) -> None:
        self._settled.discard(uid)

    async def _keep(self, key: Key, uid: str, there: Objects) -> None:
        name = child(key.name, EVIDENCE)
        found = await self._cluster.get("ConfigMap", key.namespace, name)
        owner = controller_of(found) if found is not None else {}
        if owner.get("uid") == uid:
            return
        if found is not None and owner.get("kind") != "MARLJob":  # else of an earlier job
            log.warning(
                "no evidence", namespace=key.namespace, name=name, error="the name is taken"
            )
            return
        logs = wanted(there.of("Pod"))
        said = await self._read(key.namespace, logs)
        if said:
            roles = {one.entry: one.role for one in logs}
            await self._cluster.apply(manifest(key, uid, fitted(logs, said), roles))

    async def _read(self, namespace: str, logs: Sequence[Log]) -> dict[Log, bytes]:
        """Those that could be read in time."""
        gate, said = asyncio.Semaphore(AT_ONCE), dict[Log, bytes]()

        async def one(life: Log) -> None:
            async with gate:
                if found := await self._end_of(namespace, life):
                    said[life] = found

        try:
            async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
                for each in logs:
                    group.create_task(one(each))
        except TimeoutError:
            log.info("not all logs were read", namespace=namespace)
        return said

    async def _end_of(self, namespace: str, life: Log) -> bytes:
        found = b""
        for lines in (LINES, FEW_LINES):
            found = await self._cluster.log(
                namespace,
                life.pod,
                life.container,
                previous=life.previous,
                lines=lines,
                most=READ_BYTES,
                seconds=LOG_SECONDS,
            )
            if len(found) < READ_BYTES:
                break
        return found


def wanted(pods: Iterable[Mapping[str, Any]]) -> list[Log]:
    """Which logs are to be read: of every main container, and of others that failed; those of
    containers that failed first, the latest before the others, then those of pods that live."""
    failed: list[tuple[str, str, list[Log]]] = []
    living: list[tuple[bool, Log]] = []
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status", {})
        ready = any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in status.get("conditions", ())
        )
        role = metadata.get("labels", {}).get(ROLE_LABEL, "")
        bad: list[Log] = []
        ends: list[str] = []
        for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
            lives = _lives(metadata["name"], role, one)
            if end := _failed_at(one):
                bad += lives
                ends.append(end)
            elif one["name"] == MAIN:
                lost = "deletionTimestamp" in metadata and not ready  # its node may be gone
                living += [(lost, life) for life in lives]
        if bad:
            failed.append((max(ends), role, bad))
    found: list[Log] = []
    taken: Counter[str] = Counter()
    for _, role, lives in sorted(failed, key=lambda each: each[0], reverse=True):
        taken[role] += 1
        if taken[role] <= FAILED_PODS:
            found += lives
    found += [life for _, life in sorted(living, key=lambda each: (each[0], each[1].pod))]
    return found[:MOST_LOGS]


def fitted(logs: Sequence[Log], said: Mapping[Log, bytes]) -> dict[str, str]:
    """The ends of all, by entry; half of the room is for those that failed."""
    found = {}
    kinds = [[one for one in logs if one in said and one.failed is bad] for bad in (True, False)]
    share = MOST_BYTES // max(1, sum(bool(kind) for kind in kinds))
    for kind in kinds:
        for one in kind:
            if text := _text(said[one], share // len(kind)):
                found[one.entry] = text
    return found


def manifest(key: Key, uid: str, said: Mapping[str, str], roles: Mapping[str, str]) -> Manifest:
    """`said` and `roles` by entry: names of pods do not tell their roles."""
    kept = {entry: roles[entry] for entry in said}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": child(key.name, EVIDENCE),
            "namespace": key.namespace,
            "labels": labels(key.name, EVIDENCE),
            "annotations": {ROLES: json.dumps(kept)},
            "ownerReferences": [owner(key.name, uid)],
        },
        "data": dict(said),
    }


def _lives(pod: str, role: str, container: Mapping[str, Any]) -> list[Log]:
    """What can be read of a container; of one that waits to be restarted the log is its last."""
    state, before = container.get("state", {}), container.get("lastState", {})
    again = "terminated" in before
    if not (again or "running" in state or "terminated" in state):
        return []
    failed, name = bool(_failed_at(container)), container["name"]
    found = [Log(pod, name, previous=False, failed=failed, role=role)]
    if again and "waiting" not in state:
        found.append(Log(pod, name, previous=True, failed=failed, role=role))
    return found


def _failed_at(container: Mapping[str, Any]) -> str:
    """When it failed last; empty: it did not."""
    ends = [container.get(each, {}).get("terminated", {}) for each in ("state", "lastState")]
    return max((end.get("finishedAt") or "0" for end in ends if end.get("exitCode")), default="")


def _text(said: bytes, most: int) -> str:
    """The end of it, in at most so many bytes."""
    text = said[-most:].decode(errors="replace").translate(_CONTROLS)
    return text.encode()[-most:].decode(errors="ignore")
