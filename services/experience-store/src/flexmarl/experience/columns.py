"""What one policy learns from one group, in columns: small groups are handled all at once.

A row per sequence, per turn and per version span, each in the order of the rows that it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

EPISODE, AGENT, NUMBER, TOKENS, TURNS, REWARDED = range(6)
"""Columns of sequences."""
START, END, REASON, SPANS, OWN_REWARD, TRUNCATED = range(6)
"""Of turns."""
VERSION, SPAN_START, SPAN_END = range(3)
"""Of spans."""
FINISH_REASONS = ("stop", "length", "abort")
"""By the numbers that turns have."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """All but the tokens."""

    sequences: NDArray[np.uint32]
    """[S, 6]"""
    rewards: NDArray[np.float64]
    """[S]"""
    turns: NDArray[np.uint32]
    """[U, 6]"""
    temperatures: NDArray[np.float32]
    """[U]"""
    turn_rewards: NDArray[np.float64]
    """[U]"""
    spans: NDArray[np.uint64]
    """[V, 3]"""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    group: str
    """Its name."""
    policy: str
    version: int
    agents: tuple[str, ...]
    tables: Tables
    token_ids: NDArray[np.int32]
    """[T], of all sequences end to end, as are the others."""
    loss_mask: NDArray[np.uint8]
    logprobs: NDArray[np.float32]

    def __len__(self) -> int:
        """Sequences."""
        return len(self.tables.sequences)

    def name(self, row: int) -> str:
        """Of the sequence."""
        return sequence_name(self.group, self.agents, self.tables.sequences[row].tolist())


def sequence_name(group: str, agents: tuple[str, ...], row: list[int]) -> str:
    agent = agents[row[AGENT]] if row[AGENT] < len(agents) else f"#{row[AGENT]}"
    return f"{group}/{row[EPISODE]}/{agent}/{row[NUMBER]}"


def starts(counts: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Where the rows of each begin that has so many."""
    ends = np.cumsum(counts, dtype=np.int64)
    return ends - counts
