"""The Weights service: lists and streams the tensor sets of one job in this pod's memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc.aio

from flexmarl.contracts.v1 import weights_pb2, weights_pb2_grpc
from flexmarl.runtime.errors import NotFoundError
from flexmarl.tensors.holding import set_name, set_names
from flexmarl.tensors.sets import TensorSet

CHUNK_BYTES = 2 << 20


class WeightsService(weights_pb2_grpc.WeightsServicer):
    """Serves the sets of `job_uid` only."""

    def __init__(self, shm_dir: Path, job_uid: str) -> None:
        self._shm_dir, self._job_uid = shm_dir, job_uid

    async def ListSets(
        self,
        request: weights_pb2.ListSetsRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> weights_pb2.ListSetsResponse:
        response = weights_pb2.ListSetsResponse()
        for name in set_names(self._shm_dir, self._job_uid):
            try:
                opened = TensorSet.open(self._shm_dir, name)
            except NotFoundError:  # removed meanwhile
                continue
            with opened as tensor_set:
                commit = tensor_set.committed()
                if commit is not None:
                    response.sets.add(
                        name=name, version=commit.version, bytes=tensor_set.layout.nbytes
                    )
        return response

    async def Fetch(
        self,
        request: weights_pb2.FetchRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[weights_pb2.FetchChunk]:
        if not request.set.startswith(set_name(self._job_uid, "")):
            raise NotFoundError(f"{request.set!r} is no tensor set of job {self._job_uid!r}")
        with TensorSet.open(self._shm_dir, request.set) as tensor_set:
            layout = tensor_set.layout.below(request.prefix)
            # `reading` refuses another version, and at its end one overwritten while it was sent.
            with tensor_set.reading(request.version) as views:
                yield weights_pb2.FetchChunk(layout=layout.to_json())
                for data in chunks([views[name] for name in layout.tensors]):
                    yield weights_pb2.FetchChunk(data=data)


def chunks(views: list[memoryview], size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The bytes of all views one after the other, in pieces of `size` (the last may be shorter)."""
    pending = bytearray()
    for view in views:
        position = 0
        while position < len(view):
            count = min(len(view) - position, size - len(pending))
            pending += view[position : position + count]
            position += count
            if len(pending) == size:
                yield bytes(pending)
                pending.clear()
    if pending:
        yield bytes(pending)
