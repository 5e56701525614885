"""One gRPC set-up for all services: token, errors, metrics, health, deadlines, drain."""

from __future__ import annotations  # grpc types are generic only for the type checker

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import Histogram

from flexmarl.runtime.errors import FlexMARLError, UnauthenticatedError

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Register: TypeAlias = Callable[[grpc.aio.Server], None]
Answer: TypeAlias = "Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Awaitable[Any]]"

OPTIONS = [
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_send_message_length", 256 << 20),
    ("grpc.so_reuseport", 0),
    # Of a machine that vanished no connection says so: who waits for an answer asks now and then.
    ("grpc.http2.min_ping_interval_without_data_ms", 100),
]
CHANNEL_OPTIONS = [
    *OPTIONS,
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 40_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),
    # A name whose pod came back has another address.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
]
HANDLED = Histogram(
    "flexmarl_grpc_handling_seconds", "Time to handle one call.", ["method", "code"]
)
TOKEN_KEY = "authorization"


@dataclass(frozen=True, slots=True)
class _Exchange:
    """Stands where gRPC wants what handles a stream; `Boundary` takes it apart."""

    inner: Answer

    def __call__(self, requests: Any, context: Any) -> Any:
        raise TypeError("a stream of calls is served behind the boundary only")


def exchange_handler(
    answer: Answer,
    *,
    request_deserializer: Callable[[bytes], Any] | None = None,
    response_serializer: Callable[[Any], bytes] | None = None,
) -> Handler:
    """A method whose calls come one after another on a stream, each answered by `answer` as a call
    by itself would be; an error ends the stream. See `runtime.exchanges`."""
    return grpc.stream_stream_rpc_method_handler(
        _Exchange(answer),
        request_deserializer=request_deserializer,
        response_serializer=response_serializer,
    )


class Boundary(grpc.aio.ServerInterceptor):
    """Checks the token, turns our errors into status codes and times each call."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}" if token else ""
        self._idle: set[asyncio.Timeout] = set()
        """Streams that wait for their next call."""
        self._draining = False

    def drain(self) -> None:
        """End the streams on which no call is under way, the others once it is answered."""
        self._draining = True
        for wait in self._idle:
            wait.reschedule(0)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or method.startswith("/grpc.health."):
            return handler
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(handler.unary_unary, method),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(handler.unary_stream, method),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        if isinstance(handler.stream_stream, _Exchange):
            return grpc.stream_stream_rpc_method_handler(
                self._exchanges(handler.stream_stream.inner, method),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        raise TypeError(f"{method}: such streams from the client have no boundary")

    def _admit(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        given = dict(context.invocation_metadata() or ()).get(TOKEN_KEY, "")
        if self._expected and not hmac.compare_digest(str(given), self._expected):
            raise UnauthenticatedError("this call carries no valid job token")

    def _unary(self, inner: Any, method: str) -> Any:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            async with self._translated(method, context):
                self._admit(context)
                return await inner(request, context)

        return call

    def _stream(self, inner: Any, method: str) -> Any:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            async with self._translated(method, context):
                self._admit(context)
                async with aclosing(inner(request, context)) as responses:
                    async for response in responses:
                        yield response

        return call

    def _exchanges(self, inner: Answer, method: str) -> Any:
        async def call(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            while (request := await self._next(context)) is not grpc.aio.EOF:
                async with self._translated(method, context):
                    self._admit(context)
                    await context.write(await inner(request, context))

        return call

    async def _next(self, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if self._draining:
            return grpc.aio.EOF
        wait = asyncio.timeout(None)
        self._idle.add(wait)
        try:
            async with wait:
                return await context.read()
        except TimeoutError:
            return grpc.aio.EOF
        finally:
            self._idle.discard(wait)

    @asynccontextmanager
    async def _translated(
        self, method: str, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[None]:
        started, code = time.perf_counter(), grpc.StatusCode.OK
        try:
            yield
        except FlexMARLError as error:
            code = error.code
            await context.abort(error.code, str(error))
        except asyncio.CancelledError as error:
            own = asyncio.current_task()
            if own is not None and own.cancelling():
                code = grpc.StatusCode.CANCELLED
                raise
            # Of what it waited for, not of the call: gRPC would answer nothing.
            code = grpc.StatusCode.UNKNOWN
            await context.abort(code, f"what the call waited for was cancelled: {error}")
        except Exception:
            code = grpc.StatusCode.UNKNOWN
            raise
        finally:
            HANDLED.labels(method, code.name).observe(time.perf_counter() - started)


@asynccontextmanager
async def serving(
    register: Register, address: str, *, token: str = "", drain_seconds: float = 10
) -> AsyncIterator[str]:
    """Serve what `register` adds until the block ends, then drain. Yields the bound address.

    On the way out the health service says NOT_SERVING, new calls are refused, and calls in flight
    have `drain_seconds` to finish.
    """
    boundary = Boundary(token)
    server = grpc.aio.server(interceptors=[boundary], options=OPTIONS)
    register(server)
    status = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    port = server.add_insecure_port(address)
    await server.start()
    await status.set("", health_pb2.HealthCheckResponse.SERVING)
    try:
        yield address if address.startswith("unix:") else f"{address.rsplit(':', 1)[0]}:{port}"
    finally:
        await status.enter_graceful_shutdown()
        boundary.drain()
        await server.stop(grace=drain_seconds)


def channel(address: str, token: str = "") -> grpc.aio.Channel:
    """A channel to `address` whose every call carries `token`. Close it, or use `async with`."""
    return grpc.aio.insecure_channel(
        address, options=CHANNEL_OPTIONS, interceptors=_bearer(token) if token else None
    )


def _bearer(token: str) -> list[grpc.aio.ClientInterceptor]:
    def details(call: grpc.aio.ClientCallDetails) -> grpc.aio.ClientCallDetails:
        metadata = grpc.aio.Metadata(*(call.metadata or ()))
        metadata.add(TOKEN_KEY, f"Bearer {token}")
        return grpc.aio.ClientCallDetails(
            call.method, call.timeout, metadata, call.credentials, call.wait_for_ready
        )

    class Unary(grpc.aio.UnaryUnaryClientInterceptor):
        async def intercept_unary_unary(
            self, continuation: Any, client_call_details: Any, request: Any
        ) -> Any:
            return await continuation(details(client_call_details), request)

    class Stream(grpc.aio.UnaryStreamClientInterceptor):
        async def intercept_unary_stream(
            self, continuation: Any, client_call_details: Any, request: Any
        ) -> Any:
            return await continuation(details(client_call_details), request)

    return [Unary(), Stream()]


async def wait_ready(address: str, seconds: float) -> None:
    """Return once the health service at `address` says SERVING; TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds), channel(address) as connection:
        stub = health_pb2_grpc.HealthStub(connection)
        while True:
            try:
                reply = await stub.Check(
                    health_pb2.HealthCheckRequest(), timeout=seconds, wait_for_ready=True
                )
            except grpc.aio.AioRpcError as error:
                if error.code() not in (
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                ):
                    raise
            else:
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            await asyncio.sleep(0.05)
