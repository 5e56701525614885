"""Sequences of one step -> training examples -> padded batches. Pure: numpy in, numpy out.

An example is a sequence with an advantage on every token it trains. Batches hold examples of like
length, padded on the right with ids that no trained token can see (attention is causal), so a batch
of padded rows has the gradient of its rows one by one. Nothing is ever duplicated to fill a batch.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flexmarl.contracts.policy import Algorithm
from flexmarl.experience.columns import (
    AGENT,
    END,
    EPISODE,
    OWN_REWARD,
    REWARDED,
    SPAN_END,
    SPAN_START,
    SPANS,
    START,
    TOKENS,
    TRUNCATED,
    TURNS,
    VERSION,
    Columns,
    Tables,
    starts,
)
from flexmarl.trainer.advantage import deviation, group_advantages


@dataclass(frozen=True, slots=True)
class Example:
    """One sequence of T tokens, cut behind its last trained token; N of them are trained."""

    id: str
    token_ids: NDArray[np.int32]  # [T]
    positions: NDArray[np.int64]  # [N], ascending, each in 1..T-1: where the trained tokens stand
    old_logprobs: NDArray[np.float32]  # [N], of the sampling policy
    advantages: NDArray[np.float64]  # [N]
    temperatures: NDArray[np.float32]  # [N]
    comparable: NDArray[np.bool_]  # [N]: sampled from the whole distribution, so old_logprobs of it
    versions: NDArray[np.int64]  # [N], of the policy that sampled

    @property
    def live(self) -> bool:
        """Whether it has a gradient at all."""
        return bool(np.any(self.advantages))


@dataclass(frozen=True, slots=True)
class Batch:
    """B examples in rows of S = longest T - 1 input ids; N trained tokens in all, row by row."""

    ids: tuple[str, ...]  # [B]
    input_ids: NDArray[np.int64]  # [B, S], padded on the right
    flat: NDArray[np.int64]  # [N], row * S + position - 1: the state that predicts the token
    targets: NDArray[np.int64]  # [N]
    rows: NDArray[np.int64]  # [N]
    old_logprobs: NDArray[np.float32]  # [N]
    advantages: NDArray[np.float64]  # [N]
    temperatures: NDArray[np.float32]  # [N]
    comparable: NDArray[np.bool_]  # [N]
    versions: NDArray[np.int64]  # [N]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What one policy learns from one group."""

    examples: tuple[Example, ...]
    excluded: int
    """Sequences without any reward."""
    arrival: int = -1
    """Counts the step's own groups as they came; -1: a replayed one."""

    @property
    def tokens(self) -> int:
        """Trained ones."""
        return sum(len(example.positions) for example in self.examples)

    @property
    def input_tokens(self) -> int:
        """That the model has to read."""
        return sum(len(example.token_ids) for example in self.examples)

    @property
    def live(self) -> bool:
        return any(example.live for example in self.examples)


Deviations = Mapping[tuple[str, bool], float]
"""(agent, whether of turns with a reward of their own) -> deviation of its advantages."""


def step_deviations(groups: Iterable[Columns], algorithm: Algorithm) -> Deviations:
    """What the advantages of a whole step are whitened by, whatever the order of its groups.

    An agent's episode counts once, as does a turn with a reward of its own; the two are apart. An
    agent whose advantages are all 0 is left out.
    """
    found: dict[tuple[str, bool], list[float]] = {}
    for columns in groups:
        for (agent, _), advantage in _episode_advantages(columns, algorithm).items():
            if advantage is not None:
                found.setdefault((columns.agents[agent], False), []).append(advantage)
        for agent, advantages in _turn_advantages(columns, algorithm).items():
            found.setdefault((columns.agents[agent], True), []).extend(advantages.values())
    return {key: size for key, values in found.items() if (size := deviation(values)) > 0}


def prepare(
    columns: Columns,
    algorithm: Algorithm,
    deviations: Deviations | None = None,
    *,
    comparable: bool = True,
) -> Prepared:
    """The examples of one group's sequences, in their order.

    An agent's reward of an episode counts once in the group's statistics, however many sequences
    carry it. A turn with a reward of its own is judged by that instead of the episode's: against
    all own-reward turns of the same agent in the group. Turns with neither are excluded; a sequence
    of which nothing is left is counted. Log-probs of turns that top-p or top-k cut, and of greedy
    ones (temperature 0), are not of the whole distribution; not `comparable`: none is.
    `deviations` of the step divide the advantages.
    """
    tables = columns.tables
    counts = tables.sequences[:, TURNS]
    of_turn = np.repeat(np.arange(len(counts)), counts)
    judged = _judged(columns, algorithm, deviations, of_turn)
    lengths = tables.turns[:, END].astype(np.int64) - tables.turns[:, START]
    kept = ~np.isnan(judged) & (lengths > 0)
    lengths = np.where(kept, lengths, 0)
    # From here on by token, of all sequences end to end.
    begins = np.repeat(tables.turns[:, START] - starts(lengths), lengths)
    positions = np.arange(len(begins)) + begins
    of_token = np.repeat(of_turn, lengths)
    logprobs = columns.logprobs[starts(tables.sequences[:, TOKENS])[of_token] + positions]
    temperatures = np.repeat(tables.temperatures, lengths)
    greedy = temperatures <= 0
    whole = comparable & ~greedy & (np.repeat(tables.turns[:, TRUNCATED], lengths) == 0)
    advantages = np.repeat(judged, lengths)
    temperatures = np.where(greedy, np.float32(1), temperatures)
    versions = _versions(tables, kept)
    examples, first = [], 0
    offsets = starts(tables.sequences[:, TOKENS]).tolist()
    for row, count in enumerate(np.bincount(of_token, minlength=len(counts)).tolist()):
        if not count:
            continue
        own = slice(first, first + count)
        first, at = own.stop, offsets[row]
        examples.append(
            Example(
                id=columns.name(row),
                token_ids=columns.token_ids[at : at + int(positions[first - 1]) + 1],
                positions=positions[own],
                old_logprobs=logprobs[own],
                advantages=advantages[own],
                temperatures=temperatures[own],
                comparable=whole[own],
                versions=versions[own],
            )
        )
    return Prepared(tuple(examples), len(counts) - len(examples))


def _judged(
    columns: Columns,
    algorithm: Algorithm,
    deviations: Deviations | None,
    of_turn: NDArray[np.int64],
) -> NDArray[np.float64]:
    """The advantage of each turn; nan: there is none."""

    def whitened(agent: int, own: bool, advantage: float | None) -> float:
        if advantage is None:
            return math.nan
        size = deviations and deviations.get((columns.agents[agent], own))
        return advantage / size if size else advantage

    tables = columns.tables
    outcome = {
        key: whitened(key[0], False, advantage)
        for key, advantage in _episode_advantages(columns, algorithm).items()
    }
    agents, episodes = (tables.sequences[:, each].tolist() for each in (AGENT, EPISODE))
    by_row = [outcome[key] for key in zip(agents, episodes, strict=True)]
    judged = np.array(by_row, np.float64)[of_turn]
    for agent, advantages in _turn_advantages(columns, algorithm).items():
        for turn, advantage in advantages.items():
            judged[turn] = whitened(agent, True, advantage)
    return judged


def _versions(tables: Tables, kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Of each token of the turns that are kept."""
    spans = tables.spans[np.repeat(kept, tables.turns[:, SPANS])].astype(np.int64)
    return np.repeat(spans[:, VERSION], spans[:, SPAN_END] - spans[:, SPAN_START])


def _episode_advantages(
    columns: Columns, algorithm: Algorithm
) -> dict[tuple[int, int], float | None]:
    """(number of the agent, episode) -> advantage."""
    rewards: dict[int, dict[int, float | None]] = {}
    tables = columns.tables
    for row, reward in zip(tables.sequences.tolist(), tables.rewards.tolist(), strict=True):
        own = rewards.setdefault(row[AGENT], {})
        own[row[EPISODE]] = reward if row[REWARDED] else None
    return {
        (agent, episode): advantage
        for agent, scored in rewards.items()
        for episode, advantage in zip(
            scored, group_advantages(list(scored.values()), algorithm), strict=True
        )
    }


def _turn_advantages(columns: Columns, algorithm: Algorithm) -> dict[int, dict[int, float]]:
    """Number of the agent -> row of the turn -> advantage, of turns with a reward of their own."""
    tables = columns.tables
    rewarded = np.flatnonzero(tables.turns[:, OWN_REWARD])
    if not len(rewarded):
        return {}
    agents = np.repeat(tables.sequences[:, AGENT], tables.sequences[:, TURNS])
    rewards: dict[int, dict[int, float]] = {}
    for turn in rewarded.tolist():
        rewards.setdefault(int(agents[turn]), {})[turn] = float(tables.turn_rewards[turn])
    return {
        agent: dict(zip(own, _known(group_advantages(list(own.values()), algorithm)), strict=True))
        for agent, own in rewards.items()
    }


def _known(advantages: Iterable[float | None]) -> list[float]:
    return [each for each in advantages if each is not None]


def plan(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Which items go into one batch: indexes by ascending length, ties in order.

    A batch holds at most `max_tokens` padded tokens (a longer item goes alone) and no item twice as
    long as its shortest plus 16, so that padding stays the smaller part. Every index appears once.
    """
    batches: list[list[int]] = []
    shortest = 0
    for index in sorted(range(len(lengths)), key=lambda at: lengths[at]):
        length = lengths[index]
        if (
            batches
            and length * (len(batches[-1]) + 1) <= max_tokens
            and length <= 2 * shortest + 16
        ):
            batches[-1].append(index)
        else:
            batches.append([index])
            shortest = length
    return batches


def pad(examples: Sequence[Example], pad_id: int = 0) -> Batch:
    """One batch of `examples`, in their order."""
    width = max(len(example.token_ids) for example in examples) - 1
    input_ids = np.full((len(examples), width), pad_id, np.int64)
    for row, example in enumerate(examples):
        # The last id is only a target.
        input_ids[row, : len(example.token_ids) - 1] = example.token_ids[:-1]
    counts = [len(example.positions) for example in examples]
    rows = np.repeat(np.arange(len(examples)), counts)
    return Batch(
        ids=tuple(example.id for example in examples),
        input_ids=input_ids,
        flat=rows * width + np.concatenate([example.positions for example in examples]) - 1,
        targets=np.concatenate([e.token_ids[e.positions] for e in examples]).astype(np.int64),
        rows=rows,
        old_logprobs=np.concatenate([example.old_logprobs for example in examples]),
        advantages=np.concatenate([example.advantages for example in examples]),
        temperatures=np.concatenate([example.temperatures for example in examples]),
        comparable=np.concatenate([example.comparable for example in examples]),
        versions=np.concatenate([example.versions for example in examples]),
    )
