"""What a pod serves is reached at its address, of whichever family that is."""

from __future__ import annotations

import socket
import urllib.request
from typing import Any

import pytest
from prometheus_client import start_http_server
from tests.contract.runtime.test_grpc import Service, register
from tests.ports import free_port

from flexmarl.contracts.v1 import weights_pb2, weights_pb2_grpc
from flexmarl.runtime import main
from flexmarl.runtime.grpc import channel, serving

both = pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        pytest.param(
            "[::1]", marks=pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
        ),
    ],
)


@both
async def test_a_grpc_server(host: str) -> None:
    service = Service()
    service.release.set()
    async with (
        serving(register(service), "0.0.0.0:0") as address,
        channel(f"{host}:{address.rpartition(':')[2]}") as connection,
    ):
        stub = weights_pb2_grpc.WeightsStub(connection)
        await stub.ListSets(weights_pb2.ListSetsRequest(), timeout=60)


@both
def test_metrics(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = []

    def start(port: int, address: str) -> Any:
        server, thread = start_http_server(port, address)
        servers.append((server, thread))
        return server, thread

    monkeypatch.setattr(main, "start_http_server", start)
    port = free_port()
    main.serve_metrics(port)
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as page:
            assert page.status == 200
    finally:
        for server, thread in servers:
            server.shutdown()
            server.server_close()
            thread.join()
