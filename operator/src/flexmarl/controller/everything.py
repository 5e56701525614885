"""Reads all that is ours from the API server: to begin with, and to find what watches missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice

from flexmarl.controller.cache import WATCHED, Cache, Key, Place
from flexmarl.controller.cluster import Cluster
from flexmarl.controller.names import JOB_LABEL, Manifest

FEW, READ_AT_ONCE = 50, 8
"""Objects are read one by one, some at a time; more, all together."""


class Everything:
    """Of these namespaces; of all, if there are none. RefusedError by all of it."""

    def __init__(self, cluster: Cluster, cache: Cache, namespaces: Sequence[str]) -> None:
        self._cluster, self._cache, self._namespaces = cluster, cache, namespaces

    async def read(self, wake: Callable[[Key], None]) -> None:
        """Have the cache hold all that is watched, as it is now; `wake` jobs of which something is
        new."""
        for kind in WATCHED:
            self._cache.begin()
            lost, other = self._cache.compare(kind, await self.metadata(kind))
            for key in lost:  # perhaps all of it
                wake(key)
            async for one in self._whole(kind, other):
                mended = self._cache.mend(kind, one)
                if mended is not None:
                    wake(mended)

    async def metadata(self, kind: str) -> list[Manifest]:
        """Names and versions."""
        return [one async for one in self._all(kind, metadata_only=True)]

    async def _whole(self, kind: str, places: set[Place]) -> AsyncIterator[Manifest]:
        if len(places) > FEW:
            async for one in self._all(kind):
                yield one
            return
        left = iter(places)
        while some := [*islice(left, READ_AT_ONCE)]:
            async with asyncio.TaskGroup() as group:
                answers = [
                    group.create_task(self._cluster.get(kind, key.namespace, name))
                    for key, _, name in some
                ]
            for answer in answers:
                if (there := answer.result()) is not None:
                    yield there

    async def _all(self, kind: str, *, metadata_only: bool = False) -> AsyncIterator[Manifest]:
        labels = "" if kind == "MARLJob" else JOB_LABEL
        everywhere: list[str | None] = [*self._namespaces] or [None]
        for namespace in everywhere:
            async for page in self._cluster.pages(
                kind, namespace, labels=labels, metadata_only=metadata_only
            ):
                for one in page:
                    yield one
