"""What a tensor set holds: names, dtypes, shapes, and the checksum over them. No file, no torch."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import xxhash

from flexmarl.runtime.errors import InvalidRequestError

ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
"""Dtype names as safetensors spells them."""
ALIGNMENT = 64
WEIGHTS = "weights/"
"""Tensors whose name starts so are what engines load; the checksum of a version covers them."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Tensors in order; each starts at a multiple of 64 bytes."""

    tensors: Mapping[str, TensorSpec]

    def __post_init__(self) -> None:
        for name, spec in self.tensors.items():
            if spec.dtype not in ITEM_BYTES:
                raise InvalidRequestError(
                    f"tensor {name!r}: dtype {spec.dtype!r} is none of {', '.join(ITEM_BYTES)}"
                )
            if any(size < 0 for size in spec.shape):
                raise InvalidRequestError(f"tensor {name!r}: negative size in {spec.shape}")

    @cached_property
    def offsets(self) -> dict[str, int]:
        offsets, end = {}, 0
        for name, spec in self.tensors.items():
            offsets[name] = end
            end += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
        return offsets

    @cached_property
    def nbytes(self) -> int:
        """Bytes of one buffer, padding included."""
        return sum(-(-spec.nbytes // ALIGNMENT) * ALIGNMENT for spec in self.tensors.values())

    def views(self, buffer: memoryview) -> dict[str, memoryview]:
        """The bytes of each tensor inside a buffer of `nbytes`."""
        return {
            name: buffer[self.offsets[name] : self.offsets[name] + spec.nbytes]
            for name, spec in self.tensors.items()
        }

    def below(self, prefix: str) -> "Layout":
        """The tensors whose name starts with `prefix`."""
        return Layout({n: spec for n, spec in self.tensors.items() if n.startswith(prefix)})

    def to_json(self) -> str:
        return json.dumps({n: [spec.dtype, *spec.shape] for n, spec in self.tensors.items()})

    @classmethod
    def from_json(cls, text: str) -> "Layout":
        return cls(
            {n: TensorSpec(dtype, tuple(shape)) for n, (dtype, *shape) in json.loads(text).items()}
        )


def checksum(tensors: Iterable[tuple[str, TensorSpec, memoryview]]) -> str:
    """xxh3-128 over name, dtype, shape and bytes of each tensor, whatever order they come in."""
    digest = xxhash.xxh3_128()
    for name, spec, data in sorted(tensors, key=lambda tensor: tensor[0]):
        digest.update(json.dumps([name, spec.dtype, *spec.shape]).encode())
        digest.update(data)
    return digest.hexdigest()


def weights_checksum(layout: Layout, views: Mapping[str, memoryview]) -> str:
    """The checksum of the weights alone, by the names that the model gives them."""
    return checksum(
        (name.removeprefix(WEIGHTS), spec, views[name])
        for name, spec in layout.tensors.items()
        if name.startswith(WEIGHTS)
    )
