"""The Weights service over a real loopback channel."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import torch

from flexmarl.contracts.job import Transport
from flexmarl.contracts.v1 import weights_pb2, weights_pb2_grpc
from flexmarl.runtime.errors import (
    InvalidRequestError,
    NotFoundError,
    StalePolicyError,
    UnauthenticatedError,
    UnavailableError,
)
from flexmarl.runtime.grpc import channel, serving
from flexmarl.tensors.client import fetch
from flexmarl.tensors.layout import Layout, TensorSpec
from flexmarl.tensors.server import CHUNK_BYTES, WeightsService, chunks
from flexmarl.tensors.sets import TensorSet
from flexmarl.tensors.torch_bridge import commit, layout_of, load_into, named_tensors

LAYOUT = Layout(
    {
        "weights/a": TensorSpec("U8", (CHUNK_BYTES + 17,)),
        "optimizer/m": TensorSpec("U8", (33,)),
        "weights/none": TensorSpec("F32", (0,)),
        "weights/b": TensorSpec("BF16", (CHUNK_BYTES,)),
    }
)


def filled(value: int) -> dict[str, bytes]:
    return {
        n: bytes((value + i) % 256 for i in range(spec.nbytes))
        for n, spec in LAYOUT.tensors.items()
    }


@asynccontextmanager
async def sidecar(shm_dir: Path) -> AsyncIterator[str]:
    service = WeightsService(shm_dir, "job")
    async with serving(
        lambda server: weights_pb2_grpc.add_WeightsServicer_to_server(service, server),
        "127.0.0.1:0",
        token="secret",
        drain_seconds=1,
    ) as address:
        yield address


async def test_what_is_fetched_equals_shared_memory(tmp_path: Path) -> None:
    with TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer:
        writer.write(5, filled(5))
        async with sidecar(tmp_path) as address:
            got = await fetch(address, "job.solver", 5, token="secret", prefix="weights/")
            whole = await fetch(address, "job.solver", 5, token="secret")
    expected = filled(5)
    assert {name: bytes(view) for name, view in whole.views.items()} == expected
    del expected["optimizer/m"]
    assert {name: bytes(view) for name, view in got.views.items()} == expected
    assert got.layout.tensors == LAYOUT.below("weights/").tensors


async def test_wrong_version_unknown_set_foreign_job_and_wrong_token_are_refused(
    tmp_path: Path,
) -> None:
    with (
        TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer,
        TensorSet.create(tmp_path, "other.solver", LAYOUT) as other,
    ):
        writer.write(5, filled(5))
        other.write(5, filled(5))
        async with sidecar(tmp_path) as address:
            with pytest.raises(StalePolicyError, match="at version 5, not 4"):
                await fetch(address, "job.solver", 4, token="secret")
            for name in ("job.nobody", "other.solver", "job./../../etc/passwd"):
                with pytest.raises((NotFoundError, InvalidRequestError), match="no "):
                    await fetch(address, name, 5, token="secret")
            with pytest.raises(UnauthenticatedError):
                await fetch(address, "job.solver", 5, token="guess")
    with pytest.raises(UnavailableError):
        await fetch(address, "job.solver", 5, token="secret", seconds=0.5)


async def test_a_version_overwritten_while_it_is_sent_is_no_version(tmp_path: Path) -> None:
    with TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer:
        writer.write(0, filled(0))
        async with sidecar(tmp_path) as address, channel(address, "secret") as connection:
            stub = weights_pb2_grpc.WeightsStub(connection)
            call = stub.Fetch(weights_pb2.FetchRequest(set="job.solver", version=0), timeout=60)
            received = aiter(call)
            assert (await anext(received)).layout
            writer.write(1, filled(1))
            writer.write(2, filled(2))
            with pytest.raises(grpc.aio.AioRpcError, match="overwritten"):
                _ = [chunk async for chunk in received]


async def test_sets_of_the_job_are_listed_with_version_and_size(tmp_path: Path) -> None:
    with (
        TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer,
        TensorSet.create(tmp_path, "job.empty", LAYOUT),
        TensorSet.create(tmp_path, "other.solver", LAYOUT),
    ):
        writer.write(5, filled(5))
        async with sidecar(tmp_path) as address, channel(address, "secret") as connection:
            stub = weights_pb2_grpc.WeightsStub(connection)
            listed = await stub.ListSets(weights_pb2.ListSetsRequest(), timeout=60)
    assert [(s.name, s.version, s.bytes) for s in listed.sets] == [("job.solver", 5, LAYOUT.nbytes)]


@pytest.mark.parametrize("transport", [Transport.AUTO, Transport.TCP])
async def test_a_module_in_another_pod_loads_over_tcp(tmp_path: Path, transport: Transport) -> None:
    source, target = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    tensors = {f"weights/{name}": tensor for name, tensor in named_tensors(source).items()}
    with TensorSet.create(tmp_path, "job.solver", layout_of(tensors)) as writer:
        committed = commit(writer, 9, tensors)
        async with sidecar(tmp_path) as address:
            ref = weights_pb2.WeightsRef(
                set="job.solver", version=9, checksum=committed.checksum, address=address
            )
            elsewhere = tmp_path / "other-pod"
            elsewhere.mkdir()
            loaded = await load_into(target, ref, elsewhere, transport, "secret")
    assert (loaded[0], loaded[2]) == (committed.checksum, "tcp")
    assert torch.equal(target.weight, source.weight)


def test_chunks_are_bounded_and_lose_nothing() -> None:
    views = [memoryview(b"abc"), memoryview(b""), memoryview(b"defgh")]
    assert list(chunks(views, 4)) == [b"abcd", b"efgh"]
    assert list(chunks(views, 3)) == [b"abc", b"def", b"gh"]
    assert list(chunks([], 3)) == []


async def test_an_older_copy_in_the_own_pod_does_not_hide_the_version_in_another(
    tmp_path: Path,
) -> None:
    source, target = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    tensors = {f"weights/{name}": tensor for name, tensor in named_tensors(source).items()}
    elsewhere = tmp_path / "other-pod"
    elsewhere.mkdir()
    with (
        TensorSet.create(tmp_path, "job.solver", layout_of(tensors)) as writer,
        TensorSet.create(elsewhere, "job.solver", layout_of(tensors)) as older,
    ):
        commit(older, 8, {name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
        committed = commit(writer, 9, tensors)
        async with sidecar(tmp_path) as address:
            ref = weights_pb2.WeightsRef(
                set="job.solver", version=9, checksum=committed.checksum, address=address
            )
            loaded = await load_into(target, ref, elsewhere, token="secret")
            assert (loaded[0], loaded[2]) == (committed.checksum, "tcp")
            with pytest.raises(StalePolicyError, match="at version 8, not 9"):
                await load_into(target, ref, elsewhere, Transport.SHM)
    assert torch.equal(target.weight, source.weight)
