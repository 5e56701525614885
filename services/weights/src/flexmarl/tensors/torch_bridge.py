"""Between torch modules and tensor sets: the only module of this package that imports torch."""

import asyncio
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import torch

from flexmarl.contracts.job import Transport
from flexmarl.contracts.v1 import weights_pb2
from flexmarl.runtime.errors import (
    CorruptError,
    InvalidRequestError,
    NotFoundError,
    StalePolicyError,
)
from flexmarl.tensors.client import fetch
from flexmarl.tensors.layout import WEIGHTS, Layout, TensorSpec, checksum
from flexmarl.tensors.sets import Commit, TensorSet

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}

# torch warns once per process about tensors over read-only memory. Ours are only ever read.
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    torch.frombuffer(b"\0", dtype=torch.uint8)


def named_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers, each tensor once: of tied ones the first name counts."""
    tensors: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=True))
    persistent = module.state_dict().keys()
    for name, buffer in module.named_buffers(remove_duplicate=True):
        if name in persistent:
            tensors[name] = buffer
    return tensors


def layout_of(tensors: Mapping[str, torch.Tensor]) -> Layout:
    return Layout({name: _spec(name, tensor) for name, tensor in tensors.items()})


def _spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    if tensor.dtype not in _NAMES:
        raise InvalidRequestError(f"tensor {name!r}: {tensor.dtype} is none of {list(_NAMES)}")
    return TensorSpec(_NAMES[tensor.dtype], tuple(tensor.shape))


def as_tensors(layout: Layout, views: Mapping[str, memoryview]) -> dict[str, torch.Tensor]:
    """Tensors over the memory of `views` (names of `layout`), without a copy."""
    return {name: _as_tensor(layout.tensors[name], view) for name, view in views.items()}


def _as_tensor(spec: TensorSpec, view: memoryview) -> torch.Tensor:
    dtype = TORCH_DTYPES[spec.dtype]
    if view.nbytes == 0:  # frombuffer refuses it
        return torch.empty(spec.shape, dtype=dtype)
    return torch.frombuffer(view, dtype=dtype).reshape(spec.shape)


def checksum_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """What `Commit.checksum` says of a set with these weights, computed from these tensors."""
    return checksum((name, _spec(name, tensor), _bytes(tensor)) for name, tensor in tensors.items())


def _bytes(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]  # numpy types it a Buffer from 3.12


def commit(
    tensor_set: TensorSet,
    version: int,
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, Any] | None = None,
) -> Commit:
    """Write `tensors` (names, dtypes and shapes of the set, any device) as `version`: one copy."""
    _match(tensor_set.layout, tensors, "the set")
    with tensor_set.writing(version, metadata) as views, torch.no_grad():
        for name, target in as_tensors(tensor_set.layout, views).items():
            target.copy_(tensors[name])
    committed = tensor_set.committed()
    assert committed is not None
    return committed


def copy_into(
    module: torch.nn.Module, layout: Layout, views: Mapping[str, memoryview], expected: str
) -> str:
    """Copy weights into `module`'s own tensors; the checksum of what the module then holds.

    `layout` and `views` carry the weights by the module's names. InvalidRequestError names the
    first tensor that does not fit, before anything is copied; CorruptError when the checksum is
    not `expected`.
    """
    own = named_tensors(module)
    _match(layout, own, "the module")
    with torch.no_grad():
        for name, source in as_tensors(layout, views).items():
            own[name].copy_(source)
    found = checksum_of(own)
    if found != expected:
        raise CorruptError(f"the module holds weights with checksum {found}, sent was {expected}")
    return found


def _match(layout: Layout, tensors: Mapping[str, torch.Tensor], holder: str) -> None:
    for name in layout.tensors.keys() - tensors.keys():
        raise InvalidRequestError(f"tensor {name!r} of the version is missing in {holder}")
    for name, tensor in tensors.items():
        spec = layout.tensors.get(name)
        if spec is None:
            raise InvalidRequestError(f"tensor {name!r} of {holder} is not in the version")
        if spec != _spec(name, tensor):
            own = _spec(name, tensor)
            raise InvalidRequestError(
                f"tensor {name!r} is {spec.dtype}{list(spec.shape)} in the version and "
                f"{own.dtype}{list(own.shape)} in {holder}"
            )


async def load_into(
    module: torch.nn.Module,
    ref: weights_pb2.WeightsRef,
    shm_dir: Path,
    transport: Transport = Transport.AUTO,
    token: str = "",
    *,
    executor: Executor | None = None,
    seconds: float = 600,
) -> tuple[str, float, str]:
    """Load the version that `ref` names: (checksum of the module's tensors, seconds, shm or tcp).

    Copies run in `executor` (the thread that owns the module; None: a default thread). With `auto`
    the version is read from shared memory when it lies there, else fetched from the sidecar at
    `ref.address`. StalePolicyError when another version is committed or it is overwritten
    meanwhile; a fetch may take `seconds`. After an error that came while copying, the module's
    weights are undefined.
    """
    started = time.perf_counter()
    loop = asyncio.get_running_loop()
    if transport is not Transport.TCP:
        try:
            found = await loop.run_in_executor(executor, _load_shm, module, ref, shm_dir)
            return found, time.perf_counter() - started, "shm"
        except (NotFoundError, StalePolicyError):  # an older copy may lie where it once was trained
            if transport is Transport.SHM or not ref.address:
                raise
    received = await fetch(
        ref.address, ref.set, ref.version, token=token, prefix=WEIGHTS, seconds=seconds
    )
    layout, views = _weights(received.layout, received.views)
    found = await loop.run_in_executor(executor, copy_into, module, layout, views, ref.checksum)
    return found, time.perf_counter() - started, "tcp"


def _load_shm(module: torch.nn.Module, ref: weights_pb2.WeightsRef, shm_dir: Path) -> str:
    with TensorSet.open(shm_dir, ref.set) as tensor_set, tensor_set.reading(ref.version) as views:
        layout, weights = _weights(tensor_set.layout, views)
        return copy_into(module, layout, weights, ref.checksum)


def _weights(
    layout: Layout, views: Mapping[str, memoryview]
) -> tuple[Layout, dict[str, memoryview]]:
    """The weights alone, by the names that the model gives them."""
    specs = {n.removeprefix(WEIGHTS): spec for n, spec in layout.below(WEIGHTS).tensors.items()}
    return Layout(specs), {name: views[WEIGHTS + name] for name in specs}
