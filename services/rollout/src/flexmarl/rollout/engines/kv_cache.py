"""Keys and values of the running turns, in buffers that are written in place.

One row per turn, its token n in column n: no padding between prompt and answer, nothing is
concatenated per step, and a finished row is filled with the last one. Columns after a row's length
hold zeros or another turn's leftovers; the caller masks them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

Layer = tuple[torch.Tensor, torch.Tensor]
"""Keys and values, [rows, heads, columns, head size]."""

ALIGNMENT = 64
"""Bytes. Kernels may add up in another order over memory that starts elsewhere."""


@dataclass(frozen=True, slots=True)
class Window:
    """Views of the rows and columns that one decode step sees."""

    layers: list[Layer]
    columns: int


class KVCache:
    """`limit` is the most columns that it may ever hold: the model's context."""

    def __init__(self, dtype: torch.dtype, limit: int) -> None:
        self._dtype = dtype
        self._limit = limit
        self.layers: list[Layer] = []
        self._rows = self._columns = 0

    def reserve(self, like: Sequence[Layer], rows: int, columns: int, used: int) -> None:
        """Make room for `rows` turns of up to `columns` tokens, keeping the first `used` rows.

        Heads and head sizes are those of `like`. Both sides grow by half at least, so that copies
        stay rare; memory that no turn has reached costs nothing.
        """
        if rows <= self._rows and columns <= self._columns:
            return
        old, old_columns = self.layers, self._columns
        if rows > self._rows:
            self._rows = max(rows, self._rows * 3 // 2)
        if columns > self._columns:
            self._columns = min(max(columns, self._columns * 3 // 2), self._limit)
        self.layers = []
        for n, layer in enumerate(like):
            fresh = []
            for which, tensor in enumerate(layer):
                shape = (self._rows, tensor.shape[1], self._columns, tensor.shape[3])
                buffer = _zeros(shape, self._dtype)
                if used:
                    buffer[:used, :, :old_columns] = old[n][which][:used]
                fresh.append(buffer)
            self.layers.append((fresh[0], fresh[1]))

    def window(self, rows: slice, columns: int) -> Window:
        seen = slice(columns)
        layers = [(keys[rows, :, seen], values[rows, :, seen]) for keys, values in self.layers]
        return Window(layers, columns)

    def place(self, first: int, source: Sequence[Layer], index: torch.Tensor) -> None:
        """Copy row `index[i]` of `source` to row `first + i`."""
        rows = slice(first, first + len(index))
        for ours, theirs in zip(self.layers, source, strict=True):
            for buffer, tensor in zip(ours, theirs, strict=True):
                buffer[rows, :, : tensor.shape[2]] = tensor.index_select(0, index)

    def move(self, to: torch.Tensor, source: torch.Tensor, columns: int) -> None:
        """Copy the first `columns` of rows `source` to rows `to` (disjoint)."""
        for layer in self.layers:
            for buffer in layer:
                buffer[to, :, :columns] = buffer[source, :, :columns]


def _zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros, because a masked column still meets its values and 0 times NaN is NaN.

    From numpy, which leaves pages to the kernel until they are written; torch writes them at once.
    """
    count = math.prod(shape) * dtype.itemsize
    raw = np.zeros(count + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return torch.from_numpy(raw[start : start + count]).view(dtype).view(tuple(shape))
