"""Fetch a tensor set from the sidecar of another pod."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import grpc.aio

from flexmarl.contracts.v1 import weights_pb2, weights_pb2_grpc
from flexmarl.runtime.errors import (
    CorruptError,
    FlexMARLError,
    InvalidRequestError,
    NotFoundError,
    StalePolicyError,
    UnauthenticatedError,
    UnavailableError,
)
from flexmarl.runtime.grpc import channel
from flexmarl.tensors.layout import Layout

_ERRORS = {
    kind.code: kind
    for kind in (
        CorruptError,
        InvalidRequestError,
        NotFoundError,
        StalePolicyError,
        UnauthenticatedError,
        UnavailableError,
    )
}


@dataclass(frozen=True, slots=True)
class Fetched:
    """One version as received: `views` lie in one buffer, at the offsets of `layout`."""

    version: int
    layout: Layout
    views: dict[str, memoryview]


async def fetch(
    address: str,
    name: str,
    version: int,
    *,
    token: str = "",
    prefix: str = "",
    seconds: float = 600,
) -> Fetched:
    """The tensors of set `name` whose names start with `prefix`, all of `version`.

    StalePolicyError when another version is committed or the writer overwrites it while it is
    sent, NotFoundError without such a set, UnavailableError when the sidecar does not answer within
    `seconds`.
    """
    request = weights_pb2.FetchRequest(set=name, version=version, prefix=prefix)
    async with channel(address, token) as connection:
        chunks = weights_pb2_grpc.WeightsStub(connection).Fetch(request, timeout=seconds)
        layout, filling = None, _Filling([])
        try:
            async for chunk in chunks:
                if layout is None:
                    layout = Layout.from_json(chunk.layout)
                    views = layout.views(memoryview(bytearray(layout.nbytes)))
                    filling = _Filling(list(views.values()))
                filling.take(chunk.data)
        except grpc.aio.AioRpcError as error:
            raise translated(error, f"fetching {name!r} from {address}") from error
    if layout is None or not filling.done:
        raise CorruptError(f"{address} sent less of {name!r} than its layout names")
    return Fetched(version, layout, views)


class _Filling:
    """Spreads a stream of bytes over consecutive views."""

    def __init__(self, views: list[memoryview]) -> None:
        self._views = [view for view in reversed(views) if view.nbytes]

    @property
    def done(self) -> bool:
        return not self._views

    def take(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if not self._views:
                raise CorruptError("more bytes were sent than the layout names")
            view = self._views.pop()
            count = min(len(view), len(rest))
            view[:count] = rest[:count]
            rest = rest[count:]
            if count < len(view):
                self._views.append(view[count:])


def translated(error: grpc.aio.AioRpcError, doing: str) -> FlexMARLError:
    """The error that the server raised; codes without one of ours mean: not reachable."""
    kind = _ERRORS.get(error.code(), UnavailableError)
    return kind(f"{doing}: {error.details() or error.code().name}")
