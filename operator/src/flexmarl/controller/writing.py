"""Writes a job's status, and what is news in it as an Event and as metrics."""

from __future__ import annotations

import time

import structlog

from flexmarl.controller.cache import Cache, Key
from flexmarl.controller.clock import stamp
from flexmarl.controller.cluster import Cluster, RefusedError
from flexmarl.controller.metrics import Series
from flexmarl.controller.names import Manifest
from flexmarl.controller.status import is_news

log = structlog.get_logger()


class Statuses:
    def __init__(self, cluster: Cluster, cache: Cache) -> None:
        self._cluster, self._cache, self._series = cluster, cache, Series()

    async def write(self, key: Key, job: Manifest, status: Manifest, *, trouble: bool) -> bool:
        """Unless it says so already. False: the job has changed, so look again. RefusedError.

        `trouble`: the status tells of something that stands in the way.
        """
        self._series.say(key, status)
        before: Manifest = job.get("status") or {}
        if status == {name: value for name, value in before.items() if value is not None}:
            return True
        try:
            written = await self._cluster.write_status(job, status)
        except RefusedError as error:
            if error.status in (404, 409):
                return error.status == 404  # of one that is gone the watch will tell
            raise
        self._cache.written(written)  # not to be done again until the watch brings it
        if is_news(before, status, trouble=trouble):
            what = {name: str(status.get(name, "")) for name in ("phase", "reason", "message")}
            log.info("job", namespace=key.namespace, name=key.name, **what)
            await self._event(job, status, trouble=trouble)
        return True

    def forget(self, key: Key) -> None:
        self._series.forget(key)

    async def _event(self, job: Manifest, status: Manifest, *, trouble: bool) -> None:
        """For `kubectl describe`."""
        metadata, now = job["metadata"], time.time()
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name']}.{int(now * 1e6):x}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": job["apiVersion"],
                "kind": "MARLJob",
                **{name: metadata[name] for name in ("name", "namespace", "uid")},
            },
            "type": "Warning" if trouble else "Normal",
            "reason": status["reason"] or status["phase"],
            "message": f"{status['phase']}: {status['message']}"[:1000],
            "source": {"component": "flexmarl"},
            "firstTimestamp": stamp(now),
            "lastTimestamp": stamp(now),
            "count": 1,
        }
        try:
            await self._cluster.create(event)
        except RefusedError as error:
            log.debug("no event", error=str(error))
