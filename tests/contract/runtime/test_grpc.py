"""The gRPC set-up over a real loopback channel, with the Weights service as the example."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from flexmarl.contracts.v1 import weights_pb2, weights_pb2_grpc
from flexmarl.runtime import grpc as set_up
from flexmarl.runtime.errors import NotFoundError, StalePolicyError
from flexmarl.runtime.grpc import channel, serving, wait_ready


class Service(weights_pb2_grpc.WeightsServicer):
    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()

    async def ListSets(
        self, request: weights_pb2.ListSetsRequest, context: Any
    ) -> weights_pb2.ListSetsResponse:
        self.entered.set()
        await self.release.wait()
        return weights_pb2.ListSetsResponse()

    async def Fetch(
        self, request: weights_pb2.FetchRequest, context: Any
    ) -> AsyncIterator[weights_pb2.FetchChunk]:
        if request.set == "missing":
            raise NotFoundError("no set 'missing'")
        yield weights_pb2.FetchChunk(layout="{}")
        if request.version:
            raise StalePolicyError("version 1 is gone")
        yield weights_pb2.FetchChunk(data=b"x")


def register(service: Service) -> Any:
    return lambda server: weights_pb2_grpc.add_WeightsServicer_to_server(service, server)


async def test_a_call_without_the_jobs_token_is_refused() -> None:
    service = Service()
    service.release.set()
    async with serving(register(service), "127.0.0.1:0", token="secret") as address:
        for token in ("", "other"):
            async with channel(address, token) as connection:
                stub = weights_pb2_grpc.WeightsStub(connection)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.ListSets(weights_pb2.ListSetsRequest(), timeout=60)
                assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    async for _ in stub.Fetch(weights_pb2.FetchRequest(set="a"), timeout=60):
                        pass
                assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        async with channel(address, "secret") as connection:
            stub = weights_pb2_grpc.WeightsStub(connection)
            await stub.ListSets(weights_pb2.ListSetsRequest(), timeout=60)
            chunks = [c async for c in stub.Fetch(weights_pb2.FetchRequest(set="a"), timeout=60)]
            assert [chunk.data for chunk in chunks] == [b"", b"x"]


async def test_health_answers_without_a_token() -> None:
    async with serving(register(Service()), "127.0.0.1:0", token="secret") as address:
        await wait_ready(address, 60)


async def test_waiting_for_a_service_that_never_comes_ends() -> None:
    with pytest.raises(TimeoutError):
        await wait_ready("127.0.0.1:1", 0.3)


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (weights_pb2.FetchRequest(set="missing"), grpc.StatusCode.NOT_FOUND, "no set 'missing'"),
        (
            weights_pb2.FetchRequest(set="a", version=1),
            grpc.StatusCode.FAILED_PRECONDITION,
            "version 1 is gone",
        ),
    ],
)
async def test_errors_raised_in_a_stream_reach_the_caller_with_code_and_words(
    request_: weights_pb2.FetchRequest, code: grpc.StatusCode, words: str
) -> None:
    async with serving(register(Service()), "127.0.0.1:0") as address, channel(address) as link:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in weights_pb2_grpc.WeightsStub(link).Fetch(request_, timeout=60):
                pass
        assert caught.value.code() == code
        assert caught.value.details() == words


async def test_a_call_in_flight_may_finish_while_the_server_drains() -> None:
    service = Service()
    async with serving(register(service), "127.0.0.1:0", drain_seconds=5) as address:
        link = channel(address)
        call = weights_pb2_grpc.WeightsStub(link).ListSets(
            weights_pb2.ListSetsRequest(), timeout=60
        )
        await service.entered.wait()
        asyncio.get_running_loop().call_later(0.1, service.release.set)
    assert await call == weights_pb2.ListSetsResponse()
    await link.close()


async def test_serves_on_a_unix_socket(tmp_path: Any) -> None:
    address = f"unix://{tmp_path}/s.sock"
    async with serving(register(Service()), address) as bound:
        assert bound == address
        await wait_ready(bound, 60)


async def serve_for_ever(address: str) -> None:
    async with serving(register(Service()), address):
        await asyncio.Event().wait()


async def test_a_peer_that_went_silent_is_noticed_long_before_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a machine that vanished: no connection is closed, and nobody answers."""
    quick = {"grpc.keepalive_time_ms": 500, "grpc.http2.ping_timeout_ms": 500}
    assert quick.keys() <= dict(set_up.CHANNEL_OPTIONS).keys()
    options = list((dict(set_up.CHANNEL_OPTIONS) | quick).items())
    monkeypatch.setattr(set_up, "CHANNEL_OPTIONS", options)
    address = f"unix://{tmp_path}/socket"
    server = await asyncio.create_subprocess_exec(sys.executable, __file__, address)
    try:
        await wait_ready(address, 60)
        async with channel(address) as connection:
            stub = weights_pb2_grpc.WeightsStub(connection)
            call = stub.ListSets(weights_pb2.ListSetsRequest(), timeout=600)
            await asyncio.sleep(4)
            assert not call.done()  # a peer that is busy for long is asked and does not mind
            server.send_signal(signal.SIGSTOP)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async with asyncio.timeout(60):
                    await call
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    finally:
        server.kill()
        await server.wait()


if __name__ == "__main__":
    asyncio.run(serve_for_ever(sys.argv[1]))


async def test_a_cancellation_that_is_not_the_call_s_own_has_a_status() -> None:
    class Waiting(Service):
        async def ListSets(
            self, request: weights_pb2.ListSetsRequest, context: Any
        ) -> weights_pb2.ListSetsResponse:
            raise asyncio.CancelledError("a child")

    async with (
        serving(register(Waiting()), "127.0.0.1:0") as address,
        channel(address) as connection,
    ):
        stub = weights_pb2_grpc.WeightsStub(connection)
        with pytest.raises(grpc.aio.AioRpcError, match="was cancelled: a child") as caught:
            await stub.ListSets(weights_pb2.ListSetsRequest(), timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
