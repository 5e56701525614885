"""Sequences of one step -> training examples -> padded batches. Pure: numpy in, numpy out.

An example is a sequence with an advantage on every token it trains. Batches hold examples of like
length, padded on the right with ids that no trained token can see (attention is causal), so a batch
of padded rows has the gradient of its rows one by one. Nothing is ever duplicated to fill a batch.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flexmarl.contracts.policy import Algorithm
from flexmarl.experience import samples
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


def step_deviations(
    groups: Iterable[Sequence[samples.Sequence]], algorithm: Algorithm
) -> Deviations:
    """What the advantages of a whole step are whitened by, whatever the order of its groups.

    An agent's episode counts once, as does a turn with a reward of its own; the two are apart. An
    agent whose advantages are all 0 is left out.
    """
    found: dict[tuple[str, bool], list[float]] = {}
    for sequences in groups:
        for (agent, _), advantage in _episode_advantages(sequences, algorithm).items():
            if advantage is not None:
                found.setdefault((agent, False), []).append(advantage)
        for (number, _), advantage in _turn_advantages(sequences, algorithm).items():
            if advantage is not None:
                found.setdefault((sequences[number].agent, True), []).append(advantage)
    return {key: size for key, values in found.items() if (size := deviation(values)) > 0}


def prepare(
    sequences: Sequence[samples.Sequence],
    algorithm: Algorithm,
    truncated: Collection[str] = (),
    deviations: Deviations | None = None,
) -> Prepared:
    """The examples of one group's sequences, in their order.

    An agent's reward of an episode counts once in the group's statistics, however many sequences
    carry it. A turn with a reward of its own is judged by that instead of the episode's: against
    all own-reward turns of the same agent in the group. Turns with neither are excluded; a sequence
    of which nothing is left is counted. `truncated` names agents sampled with top-p or top-k: their
    log-probs, and those of greedy turns (temperature 0), are not of the whole distribution.
    `deviations` of the step divide the advantages.
    """
    outcome = _episode_advantages(sequences, algorithm)
    own = _turn_advantages(sequences, algorithm)
    if deviations is not None:
        outcome = {
            key: _divided(advantage, deviations.get((key[0], False)))
            for key, advantage in outcome.items()
        }
        own = {
            key: _divided(advantage, deviations.get((sequences[key[0]].agent, True)))
            for key, advantage in own.items()
        }
    examples = []
    for number, sequence in enumerate(sequences):
        default = outcome[sequence.agent, sequence.episode]
        judged = [
            (turn, own.get((number, place), default)) for place, turn in enumerate(sequence.turns)
        ]
        example = _example(sequence, judged, sequence.agent in truncated)
        if example is not None:
            examples.append(example)
    return Prepared(tuple(examples), len(sequences) - len(examples))


def _divided(advantage: float | None, deviation: float | None) -> float | None:
    return advantage / deviation if advantage and deviation else advantage


def _episode_advantages(
    sequences: Iterable[samples.Sequence], algorithm: Algorithm
) -> dict[tuple[str, int], float | None]:
    rewards: dict[str, dict[int, float | None]] = {}
    for sequence in sequences:
        rewards.setdefault(sequence.agent, {})[sequence.episode] = sequence.reward
    return {
        (agent, episode): advantage
        for agent, scored in rewards.items()
        for episode, advantage in zip(
            scored, group_advantages(list(scored.values()), algorithm), strict=True
        )
    }


def _turn_advantages(
    sequences: Iterable[samples.Sequence], algorithm: Algorithm
) -> dict[tuple[int, int], float | None]:
    """(sequence number, turn number) -> advantage, of the turns with a reward of their own."""
    rewards: dict[str, dict[tuple[int, int], float | None]] = {}
    for number, sequence in enumerate(sequences):
        for place, turn in enumerate(sequence.turns):
            if turn.reward is not None:
                rewards.setdefault(sequence.agent, {})[number, place] = turn.reward
    return {
        key: advantage
        for scored in rewards.values()
        for key, advantage in zip(
            scored, group_advantages(list(scored.values()), algorithm), strict=True
        )
    }


def _example(
    sequence: samples.Sequence,
    judged: Sequence[tuple[samples.TurnSpan, float | None]],
    truncated: bool,
) -> Example | None:
    kept = [(turn, value) for turn, value in judged if value is not None and turn.end > turn.start]
    if not kept:
        return None
    positions = np.concatenate([np.arange(turn.start, turn.end) for turn, _ in kept])
    lengths = [turn.end - turn.start for turn, _ in kept]
    temperatures = np.repeat(np.array([t.temperature for t, _ in kept], np.float32), lengths)
    greedy = temperatures <= 0
    return Example(
        id=sequence.id,
        token_ids=sequence.token_ids[: positions[-1] + 1],
        positions=positions,
        old_logprobs=sequence.logprobs[positions],
        advantages=np.repeat(np.array([value for _, value in kept], np.float64), lengths),
        temperatures=np.where(greedy, np.float32(1), temperatures),
        comparable=~greedy & (not truncated),
        versions=np.repeat(
            np.array([span.version for turn, _ in kept for span in turn.versions], np.int64),
            [span.end - span.start for turn, _ in kept for span in turn.versions],
        ),
    )


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
