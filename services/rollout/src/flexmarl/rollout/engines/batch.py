"""The running turns as arrays, one row each, without holes; numpy only, no model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexmarl.rollout.engines.base import FinishReason, Turn

_COLUMNS: dict[str, Any] = {
    "lengths": np.int64,  # tokens in the KV cache: the position of the token fed next
    "last": np.int64,  # the token fed next
    "sampled": np.int64,
    "before": np.int64,  # sampled of the turn before it was cut
    "max_tokens": np.int64,
    "seeds": np.uint64,
    "greedy": np.bool_,
    "temperature": np.float32,
    "top_k": np.int64,
    "top_p": np.float64,
}


class Batch:
    """Rows [0, count) are running. `lengths`, `last`... are arrays of at least `count` rows."""

    lengths: NDArray[np.int64]
    last: NDArray[np.int64]
    sampled: NDArray[np.int64]
    before: NDArray[np.int64]
    max_tokens: NDArray[np.int64]
    seeds: NDArray[np.uint64]
    greedy: NDArray[np.bool_]
    temperature: NDArray[np.float32]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]

    def __init__(self, rows: int, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self.count = 0
        self.turns: list[Turn] = []
        self._vocab_size = vocab_size
        self._eos = np.zeros(vocab_size, np.bool_)
        self._eos[list(eos_ids)] = True
        self._stops = np.full((rows, 0), -1, np.int64)
        self._tokens = np.empty((rows, 0), np.int32)
        self._logprobs = np.empty((rows, 0), np.float32)
        for name, dtype in _COLUMNS.items():
            setattr(self, name, np.zeros(rows, dtype))
        self.temperature += 1  # rows that no turn ever had are computed too, where tiles are fixed

    def add(self, turns: Sequence[Turn]) -> None:
        """Append turns as rows; the last prompt token is the one fed next."""
        self._widen(turns)
        rows = slice(self.count, self.count + len(turns))
        samplings = [turn.request.sampling for turn in turns]
        greedy = np.array([sampling.temperature == 0 for sampling in samplings])
        top_k = np.array([sampling.top_k for sampling in samplings])
        top_p = np.array([sampling.top_p for sampling in samplings])
        self.lengths[rows] = [len(turn.request.prompt_ids) - 1 for turn in turns]
        self.last[rows] = [turn.request.prompt_ids[-1] for turn in turns]
        self.sampled[rows] = 0
        self.before[rows] = [turn.request.resumed for turn in turns]
        self.max_tokens[rows] = [turn.max_tokens for turn in turns]
        self.seeds[rows] = np.array([turn.request.seed for turn in turns], np.uint64)
        self.greedy[rows] = greedy
        temperature = [sampling.temperature for sampling in samplings]
        self.temperature[rows] = np.where(greedy, 1.0, temperature)
        everything = self._vocab_size
        self.top_k[rows] = np.where(greedy | (top_k == 0), everything, top_k).clip(max=everything)
        # infinity is off, not 1: a rounded sum of probabilities may exceed 1
        self.top_p[rows] = np.where(greedy | (top_p == 1), np.inf, top_p)
        self._stops[rows] = -1
        for row, sampling in enumerate(samplings, self.count):
            if sampling.stop_token_ids:
                self._stops[row, : len(sampling.stop_token_ids)] = sampling.stop_token_ids
        self.turns += turns
        self.count += len(turns)

    def _widen(self, turns: Sequence[Turn]) -> None:
        tokens = max(turn.max_tokens for turn in turns)
        stops = max(len(turn.request.sampling.stop_token_ids) for turn in turns)
        if tokens > self._tokens.shape[1]:
            self._tokens = _wider(self._tokens, tokens, 0)
            self._logprobs = _wider(self._logprobs, tokens, 0)
        if stops > self._stops.shape[1]:
            self._stops = _wider(self._stops, stops, -1)

    def record(self, tokens: NDArray[np.int64], logprobs: NDArray[np.float32]) -> NDArray[np.int64]:
        """Write down one token per row [count]; the rows whose turn it ended."""
        count = self.count
        rows, at = np.arange(count), self.sampled[:count]
        self._tokens[rows, at] = tokens
        self._logprobs[rows, at] = logprobs
        at += 1
        self.lengths[:count] += 1
        self.last[:count] = tokens
        stopped = self._eos[tokens]
        if self._stops.shape[1]:
            stopped |= (self._stops[:count] == tokens[:, None]).any(1)
        ended = np.flatnonzero(stopped | (at >= self.max_tokens[:count]))
        for row in ended:
            reason = FinishReason.STOP if stopped[row] else FinishReason.LENGTH
            self.turns[row].finish_reason = reason
        return ended

    def take(self, rows: NDArray[np.int64]) -> tuple[list[Turn], NDArray[Any], NDArray[Any]]:
        """Remove rows: their turns, filled in, and which rows (`source`) moved `to` which."""
        turns = [self.turns[row] for row in rows]
        for row, turn in zip(rows, turns, strict=True):
            end = self.sampled[row]
            turn.token_ids = self._tokens[row, :end].copy()
            turn.logprobs = self._logprobs[row, :end].copy()
        left = self.count - len(rows)
        to = rows[rows < left]
        source = np.setdiff1d(np.arange(left, self.count), rows)
        for name in _COLUMNS:
            array = getattr(self, name)
            array[to] = array[source]
        for array in (self._stops, self._tokens, self._logprobs):
            array[to] = array[source]
        for here, there in zip(to, source, strict=True):
            self.turns[here] = self.turns[there]
        del self.turns[left:]
        self.count = left
        return turns, to, source

    def rows_of(self, turns: Sequence[Turn]) -> NDArray[np.int64]:
        """Ascending."""
        wanted = set(turns)
        return np.array([row for row, turn in enumerate(self.turns) if turn in wanted], np.int64)


def _wider(array: NDArray[Any], columns: int, fill: int) -> NDArray[Any]:
    columns = max(columns, 2 * array.shape[1])
    wide = np.full((array.shape[0], columns), fill, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide
