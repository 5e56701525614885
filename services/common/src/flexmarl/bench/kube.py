"""The cluster of a bench: plain requests and watches with the user's kubeconfig."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from kubernetes.aio import client

from flexmarl.contracts.api import GROUP, VERSION
from flexmarl.contracts.crd import crd
from flexmarl.controller.cluster import Cluster, RefusedError, connection

Object = dict[str, Any]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SECONDS = 60.0
DELETED_SECONDS = 300.0
POLL_SECONDS = 0.2


def jobs_in(namespace: str) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/marljobs"


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    """TimeoutError: it did not come true."""
    async with asyncio.timeout(seconds):
        while True:
            if await condition():
                return
            await asyncio.sleep(POLL_SECONDS)


class Kube:
    def __init__(self, api: client.ApiClient) -> None:
        self._api, self._cluster = api, Cluster(api)

    async def call(self, method: str, path: str, body: Object | None = None) -> Object:
        """RefusedError: the API server does not do it."""
        return await self._cluster.call(method, path, body=body)

    async def there(self, path: str) -> bool:
        try:
            await self.call("GET", path)
        except RefusedError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def watch(self, path: str, labels: str = "") -> AsyncIterator[tuple[str, Object]]:
        """What is there, and every change from then on: its kind, and the object."""
        query = [("watch", "true"), *([("labelSelector", labels)] if labels else [])]
        request = await self._api.param_serialize(
            "GET",
            path,
            query_params=query,
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        while True:
            answer = await self._api.call_api(*request, _request_timeout=3600)
            if answer.status != 429:  # as a definition that is new says
                break
            await asyncio.sleep(POLL_SECONDS)
        async with answer.response as stream:
            stream.raise_for_status()
            async for line in stream.content:
                said = json.loads(line)
                yield said["type"], said["object"]

    async def gone(self, path: str) -> None:
        """Delete it, and wait until it is away."""
        await self.call("DELETE", path)

        async def away() -> bool:
            return not await self.there(path)

        await until(away, DELETED_SECONDS)


@asynccontextmanager
async def kube() -> AsyncIterator[Kube]:
    async with connection() as api:
        yield Kube(api)


@asynccontextmanager
async def own_namespace(at: Kube) -> AsyncIterator[str]:
    """One that ends with the block, and with it all that is in it."""
    name = f"flexmarl-bench-{secrets.token_hex(3)}"
    await at.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        yield name
    finally:
        await at.gone(f"/api/v1/namespaces/{name}")


@asynccontextmanager
async def definition(at: Kube) -> AsyncIterator[None]:
    """The MARLJob's: the one that is there, or ours until the block ends."""
    made = crd()
    path = f"{DEFINITIONS}/{made['metadata']['name']}"
    if await at.there(path):
        yield
        return
    await at.call("POST", DEFINITIONS, made)
    try:

        async def established() -> bool:
            return _established(await at.call("GET", path))

        await until(established, SECONDS)
        yield
    finally:
        await at.gone(path)


def _established(found: Object) -> bool:
    conditions = found.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
