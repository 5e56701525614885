"""Pure tensor functions from logits to sampled tokens and their log-probs.

A turn's token is a function of (seed, position, its distribution) alone: the uniform number comes
from a counter-based generator, the token from the inverse of the distribution function. Who else
is in the batch does not enter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each row of a batch draws. None: no row of the batch asks for it."""

    greedy: torch.Tensor | None
    """bool [B]"""
    temperature: torch.Tensor | None
    """float32 [B]; 1 where greedy"""
    top_k: torch.Tensor | None
    """int64 [B]; the size of the vocabulary: off"""
    top_p: torch.Tensor | None
    """float64 [B]; infinity: off"""

    def of(self, rows: slice) -> SamplingRows:
        def part(column: torch.Tensor | None) -> torch.Tensor | None:
            return None if column is None else column[rows]

        return SamplingRows(
            part(self.greedy), part(self.temperature), part(self.top_k), part(self.top_p)
        )


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[Any]) -> NDArray[np.float64]:
    """float64 [B] in [0, 1 - 2**-52], a pure function of each (seed, position): splitmix64."""
    state = _mixed(seeds + _GOLDEN) + positions.astype(np.uint64) * _GOLDEN
    # 52 bits, so that the product with any total stays below that total
    return (_mixed(_mixed(state)) >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))


def processed_logprobs(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """float32 [B, V]: log-probs after temperature, then top-k, then top-p; -inf is cut off.

    Of tokens with equal logits at the k-th place all stay. Top-p keeps the smallest set of most
    likely tokens whose probability reaches p, at least one.
    """
    logits = logits.float()
    if rows.temperature is not None:
        logits = logits / rows.temperature[:, None]
    if rows.top_k is not None or rows.top_p is not None:
        logits = _truncated(logits, rows)
    return torch.log_softmax(logits, dim=-1)


def _truncated(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    cut = torch.zeros_like(values, dtype=torch.bool)
    if rows.top_k is not None:
        last = rows.top_k.clamp(1, values.shape[-1])[:, None] - 1
        cut |= values < values.gather(-1, last)
    if rows.top_p is not None:
        probs = torch.softmax(values.double().masked_fill(cut, -torch.inf), dim=-1)
        cut |= probs.cumsum(-1) - probs >= rows.top_p[:, None]
        cut[:, 0] = False
    return logits.masked_fill(torch.empty_like(cut).scatter_(-1, order, cut), -torch.inf)


def draw(
    logprobs: torch.Tensor, uniform: torch.Tensor, greedy: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens int64 [B] and their log-probs float32 [B].

    `uniform` is float64 [B] in [0, 1). A token of probability 0 is never drawn. A row with NaN gets
    any token, and NaN.
    """
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    target = uniform[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True).clamp_(max=logprobs.shape[-1] - 1)
    if greedy is not None:
        best = logprobs.argmax(-1, keepdim=True)
        tokens = torch.where(greedy[:, None], best, tokens)
    return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]
