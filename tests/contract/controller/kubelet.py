"""A node's end of `kubectl logs`: what the API server asks when it is asked for a pod's log."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from tests.contract.controller.conftest import World

Life = tuple[str, str, bool]
"""Pod, container, and whether it is the life before."""


@dataclass
class Kubelet:
    """Of a node by the name of the world's namespace."""

    world: World
    logs: dict[Life, bytes] = field(default_factory=dict)
    silent: bool = False
    """It never answers."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[asyncio.Transport] = field(default_factory=set)

    async def takes_all(self) -> None:
        """Every pod is on its node."""
        for pod in await self.world.names("Pod"):
            target = {"apiVersion": "v1", "kind": "Node", "name": self.world.namespace}
            body = {"metadata": {"name": pod}, "target": target}
            at = f"/api/v1/namespaces/{self.world.namespace}/pods/{pod}/binding"
            await self.world.cluster.call("POST", at, body=body)

    async def releases_all(self) -> None:
        """Pods that are to go are gone: nothing of them runs."""
        for pod in await self.world.cluster.listed("Pod", self.world.namespace):
            if "deletionTimestamp" in pod["metadata"]:
                at = f"/api/v1/namespaces/{self.world.namespace}/pods/{pod['metadata']['name']}"
                query = [("gracePeriodSeconds", "0")]
                await self.world.cluster.call("DELETE", at, query=query)

    async def answer(self, request: web.Request) -> web.Response:
        if request.transport is not None:
            self.connections.add(request.transport)
        if self.silent:
            await self.over.wait()
        life = (
            request.match_info["pod"],
            request.match_info["container"],
            request.query.get("previous") == "true",
        )
        if life not in self.logs:
            return web.Response(status=404)
        return web.Response(body=self.logs[life][: int(request.query["limitBytes"])])


@asynccontextmanager
async def kubelet(world: World, directory: Path) -> AsyncIterator[Kubelet]:
    found = Kubelet(world)
    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", found.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=_tls(directory))
        await site.start()
        port = runner.addresses[0][1]
        node = {"metadata": {"name": world.namespace}, "spec": {}}
        await world.cluster.call("POST", "/api/v1/nodes", body=node)
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        await world.change(f"/api/v1/nodes/{world.namespace}/status", {"status": status})
        yield found
    finally:
        found.over.set()
        await world.cluster.call("DELETE", f"/api/v1/nodes/{world.namespace}")
        assert runner.server is not None
        opened = {each.transport for each in runner.server.connections if each.transport}
        await runner.cleanup()
        for connection in found.connections | opened:  # else TLS waits for the other end's farewell
            connection.abort()


def _tls(directory: Path) -> ssl.SSLContext:
    key, certificate = directory / "kubelet.key", directory / "kubelet.crt"
    command = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    where = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run(
        [*command, "-nodes", "-days", "2", "-subj", "/CN=kubelet", *where],
        check=True,
        capture_output=True,
    )
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(certificate, key)
    return found
