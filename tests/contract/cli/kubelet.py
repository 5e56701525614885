"""What a node's agent answers to an API server: logs, and commands in pods.

There are no containers: the test says what they wrote, and commands are processes of this machine.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from flexmarl.cli.readerpod import MOUNT
from flexmarl.controller.cluster import Cluster

HOST = "127.0.0.1"
STDOUT, STDERR, OUTCOME = b"\1", b"\2", b"\3"


@dataclass
class Kubelet:
    cluster: Cluster
    namespace: str
    node: str
    claim: Path
    """What pods have mounted."""
    logs: dict[tuple[str, str], Sequence[str | float | None]] = field(default_factory=dict)
    """By pod and container: pieces of text, and seconds before the next; None: the first reader's
    connection breaks here."""
    asked: list[dict[str, str]] = field(default_factory=list)
    """How logs were asked for."""
    ending: set[str] = field(default_factory=set)
    """Pods that end while a command of theirs runs."""

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def run(self, name: str, labels: dict[str, str], **spec: Any) -> None:
        """A pod of this node, running."""
        containers = [{"name": "main", "image": "registry.invalid/flexmarl"}]
        pod = {
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "nodeName": self.node,
                "containers": containers,
                **spec,
            },
        }
        await self.cluster.call("POST", self.pods, body=pod)
        await self.says(name, "Running", main={"running": {"startedAt": "2026-01-01T00:00:00Z"}})

    async def says(
        self, name: str, phase: str, *, restarts: int = 0, **states: dict[str, Any]
    ) -> None:
        """Of containers; `main` is one, the others prepare the pod."""

        def status(container: str) -> dict[str, Any]:
            state = states[container]
            about = {"name": container, "image": "", "imageID": "", "restartCount": restarts}
            return {**about, "ready": "running" in state, "state": state}

        body = {
            "phase": phase,
            "containerStatuses": [status("main")] if "main" in states else [],
            "initContainerStatuses": [status(one) for one in states if one != "main"],
        }
        content = "application/merge-patch+json"
        at = f"{self.pods}/{name}/status"
        await self.cluster.call("PATCH", at, body={"status": body}, content=content)

    async def take(self, labels: str) -> dict[str, Any]:
        """The first pod with these labels, once there is one: bind it here and run it."""
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(60):
            while not found:
                await asyncio.sleep(0.1)
                found = await self.cluster.listed("Pod", self.namespace, labels=labels)
        name = found[0]["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
        body = {"metadata": {"name": name}, "target": target}
        await self.cluster.call("POST", f"{self.pods}/{name}/binding", body=body)
        await self.says(name, "Running", main={"running": {"startedAt": "2026-01-01T00:00:00Z"}})
        return found[0]

    async def log(self, request: web.Request) -> web.StreamResponse:
        pod, container = (request.match_info[name] for name in ("pod", "container"))
        here = {"pod": pod, "container": container}
        first = not any(here.items() <= one.items() for one in self.asked)
        self.asked.append({**here, **request.query})
        if (pod, container) not in self.logs:
            raise web.HTTPNotFound(text=f"{pod} is not known to this node")
        response = web.StreamResponse()
        await response.prepare(request)
        written = 0
        with suppress(ConnectionError):  # who asked has seen enough
            for piece in self.logs[pod, container]:
                if isinstance(piece, str):
                    # All of one second: sinceTime leaves none out.
                    stamped, written = timed(piece, written)
                    text = stamped if "timestamps" in request.query else piece
                    await response.write(text.encode())
                elif piece is not None:
                    await asyncio.sleep(piece)
                elif first and request.transport is not None:
                    request.transport.abort()
        return response

    async def execute(self, request: web.Request) -> web.StreamResponse:
        pod = request.match_info["pod"]
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        _, *words = request.query.getall("command")
        words[words.index(MOUNT)] = str(self.claim)
        piped = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=piped, stderr=piped
        )
        written, said = await process.communicate()
        if pod in self.ending:
            await socket.send_bytes(STDOUT + written[: len(written) // 2])
            await self.says(pod, "Succeeded", main={"terminated": {"exitCode": 0}})
            await socket.close()
            return socket
        await socket.send_bytes(STDOUT + written)
        await socket.send_bytes(STDERR + said)
        outcome = {"status": "Failure" if process.returncode else "Success"}
        await socket.send_bytes(OUTCOME + json.dumps(outcome).encode())
        await socket.close()
        return socket


def timed(lines: str, before: int) -> tuple[str, int]:
    """Whole lines, each with its time; how many there have been."""
    split = lines.splitlines(keepends=True)
    stamps = (f"2026-01-01T00:00:00.{number:09}Z" for number in range(before, 10**9))
    joined = "".join(f"{stamp} {line}" for stamp, line in zip(stamps, split, strict=False))
    return joined, before + len(split)


@asynccontextmanager
async def kubelet(
    cluster: Cluster, namespace: str, pki: Path, claim: Path
) -> AsyncIterator[Kubelet]:
    """One node of the cluster, answering for it until the end of the block."""
    here = Kubelet(cluster, namespace, f"node-of-{namespace}", claim)
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", here.log)
    app.router.add_get("/exec/{namespace}/{pod}/{container}", here.execute)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pki / "kubelet.crt", pki / "kubelet.key")
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    try:
        await cluster.call("POST", "/api/v1/nodes", body={"metadata": {"name": here.node}})
        status = {
            "addresses": [{"type": "InternalIP", "address": HOST}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        content = "application/merge-patch+json"
        at = f"/api/v1/nodes/{here.node}"
        await cluster.call("PATCH", f"{at}/status", body={"status": status}, content=content)
        yield here
        await cluster.call("DELETE", at)
    finally:
        await runner.cleanup()
