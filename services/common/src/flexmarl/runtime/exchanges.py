"""Calls that come one after another on streams which stay open: the caller's side.

What makes a call a call (a stream of its own, headers, a status) costs several times what a small
message does, here and at the service, whose side is `runtime.grpc.exchange_handler`.
"""

from __future__ import annotations  # grpc types are generic only for the type checker

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar, cast

import grpc
import grpc.aio

Request = TypeVar("Request")
Response = TypeVar("Response")
Metadata: TypeAlias = tuple[tuple[str, str], ...]


class Exchanges(Generic[Request, Response]):
    """A method of the service, called as if each call were by itself.

    As many streams are open as calls were under way at once. One on which a call failed or was
    given up is not used again: its answer might come yet.
    """

    def __init__(self, open_: Callable[..., grpc.aio.StreamStreamCall[Request, Response]]) -> None:
        """`open_`: what `channel.stream_stream` gives."""
        self._open = open_
        self._idle: list[grpc.aio.StreamStreamCall[Request, Response]] = []

    async def __call__(
        self,
        request: Request,
        *,
        timeout: float,  # noqa: ASYNC109
        metadata: Metadata | None,
    ) -> Response:
        """The answer; AioRpcError, DEADLINE_EXCEEDED after `timeout` seconds without one.

        `metadata` goes with the stream, which may have been opened with that of another call.
        """
        stream = self._take(metadata)
        try:
            async with asyncio.timeout(timeout):
                await _write(stream, request)
                answer: Any = await stream.read()
        except TimeoutError:
            stream.cancel()
            raise _error(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer within {timeout:g} s"
            ) from None
        except BaseException:
            stream.cancel()
            raise
        if answer is grpc.aio.EOF:
            raise _ended()
        self._idle.append(stream)
        return cast("Response", answer)

    def _take(self, metadata: Metadata | None) -> grpc.aio.StreamStreamCall[Request, Response]:
        while self._idle:
            if not (stream := self._idle.pop()).done():
                return stream
        return self._open(metadata=metadata)


async def _write(stream: grpc.aio.StreamStreamCall[Request, Response], request: Request) -> None:
    """What was not sent may be sent again: the stream had ended, or ended on the way. gRPC calls
    the latter INTERNAL, whatever ended it."""
    try:
        await stream.write(request)
    except asyncio.InvalidStateError:
        raise _ended() from None
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.INTERNAL:
            raise
        raise _ended() from error


def _ended() -> grpc.aio.AioRpcError:
    return _error(grpc.StatusCode.UNAVAILABLE, "the service ended the stream")


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
