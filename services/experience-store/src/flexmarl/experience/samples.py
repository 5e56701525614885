"""What the policies learn from one group, as arrays, and its translation from and to the wire.

On the wire arrays are raw little-endian bytes inside protobuf, never pickle. Those that come from
it are read-only.

Both directions check every rule of `checks`, unless told that the store does or did: it lets
nothing in without that, and nothing out whose bytes changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.checks import check_samples
from flexmarl.experience.columns import (
    AGENT,
    END,
    EPISODE,
    FINISH_REASONS,
    OWN_REWARD,
    REASON,
    REWARDED,
    SPANS,
    START,
    TOKENS,
    TRUNCATED,
    TURNS,
    Columns,
    Tables,
)
from flexmarl.experience.wire import (
    Part,
    WireGroup,
    WireSamples,
    group_message,
    read_samples,
    samples_message,
)
from flexmarl.runtime.errors import InvalidRequestError

_ID, _MASK, _LOGPROB = (np.dtype(each) for each in ("<i4", "u1", "<f4"))
JOINED_VALUES = 1 << 14
"""Up to so many, arrays are joined before they are sent."""
_REASONS = {name: number for number, name in enumerate(FINISH_REASONS)}


@dataclass(frozen=True, slots=True, order=True)
class GroupId:
    """The episodes of one (step, index), as this incarnation of the job played them."""

    incarnation: int
    step: int
    index: int

    def __str__(self) -> str:
        return f"{self.incarnation}/{self.step}/{self.index}"

    def sequence_id(self, episode: int, agent: str, seq: int) -> str:
        """Name of the `seq`-th sequence of an agent in an episode, unique in the job."""
        return f"{self.incarnation}/{self.step}/{self.index}/{episode}/{agent}/{seq}"


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Sampled tokens [start, end) of a turn, counted from its start, came from this version."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """One generation in its sequence: its sampled tokens are `token_ids[start:end]`."""

    start: int
    end: int
    versions: tuple[VersionSpan, ...]
    finish_reason: str
    """stop, length or abort."""
    temperature: float
    reward: float | None = None
    """Of this turn alone."""
    truncated: bool = False
    """By top-p or top-k: its log-probs are not of the policy's whole distribution."""


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """Token ids of one conversation of one agent, with a mask of 1 on those that it sampled."""

    id: str
    agent: str
    episode: int
    token_ids: NDArray[np.int32]
    """[T]"""
    loss_mask: NDArray[np.uint8]
    """[T]: 1 on sampled tokens."""
    logprobs: NDArray[np.float32]
    """[T]: of the sampled tokens under the behaviour policy; 0 where the mask is 0."""
    turns: tuple[TurnSpan, ...]
    reward: float | None = None
    """Of this agent in this episode; none: unscorable, excluded."""


@dataclass(frozen=True, slots=True)
class PolicySamples:
    """What one policy learns from one group; no sequence: it took no turn."""

    policy: str
    version: int
    """That the group was routed to."""
    sequences: tuple[Sequence, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class LeasedGroup:
    """A stored group, as one policy sees it."""

    id: GroupId
    task_id: str
    columns: Columns

    @property
    def samples(self) -> PolicySamples:
        """The same, a sequence at a time."""
        return samples_in(self.columns)


def to_wire(samples: PolicySamples, group: GroupId) -> bytes:
    """The message of `samples`; InvalidRequestError names the sequence that breaks a rule."""
    raw = b"".join(_message(samples, group))
    check_samples(read_samples(raw), str(group))
    return raw


def from_wire(raw: Part, group: GroupId) -> PolicySamples:
    """The samples in a message; InvalidRequestError names the sequence that breaks a rule."""
    wire = read_samples(raw)
    check_samples(wire, str(group))
    return samples_in(_columns(wire, str(group)))


def group_to_wire(
    group: GroupId, task_id: str, policies: Iterable[PolicySamples], note: bytes = b""
) -> list[Part]:
    """Parts of an offered group; the store checks more than that arrays are what they shall be."""
    messages = [_message(samples, group) for samples in policies]
    return group_message(group_id_to_wire(group), task_id, messages, note)


def leased_from_wire(wire: WireGroup) -> LeasedGroup:
    """A group that comes out of the store, so it was checked."""
    [samples], group = wire.policies, group_id_from_wire(wire.id)
    return LeasedGroup(group, wire.task_id, _columns(samples, str(group)))


def group_id_to_wire(group: GroupId) -> pb.GroupId:
    return pb.GroupId(incarnation=group.incarnation, step=group.step, index=group.index)


def group_id_from_wire(message: pb.GroupId) -> GroupId:
    return GroupId(message.incarnation, message.step, message.index)


def samples_in(columns: Columns) -> PolicySamples:
    tables, sequences = columns.tables, list[Sequence]()
    turns = zip(
        tables.turns.tolist(),
        tables.temperatures.tolist(),
        tables.turn_rewards.tolist(),
        strict=True,
    )
    spans, at = iter(tables.spans.tolist()), 0
    for number, (row, reward) in enumerate(
        zip(tables.sequences.tolist(), tables.rewards.tolist(), strict=True)
    ):
        own = slice(at, at + row[TOKENS])
        at = own.stop
        sequences.append(
            Sequence(
                id=columns.name(number),
                agent=columns.agents[row[AGENT]],
                episode=row[EPISODE],
                token_ids=columns.token_ids[own],
                loss_mask=columns.loss_mask[own],
                logprobs=columns.logprobs[own],
                turns=tuple(
                    TurnSpan(
                        start=turn[START],
                        end=turn[END],
                        versions=tuple(
                            VersionSpan(*span) for span in itertools.islice(spans, turn[SPANS])
                        ),
                        finish_reason=FINISH_REASONS[turn[REASON]],
                        temperature=temperature,
                        reward=own_reward if turn[OWN_REWARD] else None,
                        truncated=bool(turn[TRUNCATED]),
                    )
                    for turn, temperature, own_reward in itertools.islice(turns, row[TURNS])
                ),
                reward=reward if row[REWARDED] else None,
            )
        )
    return PolicySamples(columns.policy, columns.version, tuple(sequences))


def _columns(wire: WireSamples, group: str) -> Columns:
    ids, mask, logprobs = wire.arrays
    head = wire.head
    return Columns(
        group,
        head.policy,
        head.version,
        tuple(head.agents),
        wire.tables,
        np.frombuffer(ids, "<i4"),
        np.frombuffer(mask, np.uint8),
        np.frombuffer(logprobs, "<f4"),
    )


def _message(samples: PolicySamples, group: GroupId) -> list[Part]:
    sequences = samples.sequences
    for sequence in sequences:
        _check_types(sequence)
    agents, tables = _tables(sequences, f"{group}/")
    head = pb.PolicySamples(policy=samples.policy, version=samples.version, agents=agents)
    arrays = (
        [each.token_ids for each in sequences],
        [each.loss_mask for each in sequences],
        [each.logprobs for each in sequences],
    )
    return samples_message(head, [_pieces(each) for each in arrays], tables)


def _pieces(arrays: list[NDArray[Any]]) -> list[Part]:
    """Their bytes: small ones joined here, large ones where the whole message is."""
    if sum(map(len, arrays)) <= JOINED_VALUES:
        return [b"".join([each.tobytes() for each in arrays])]
    return [np.ascontiguousarray(each).data for each in arrays]


def _tables(sequences: Iterable[Sequence], prefix: str) -> tuple[tuple[str, ...], Tables]:
    """With the names of agents, in the order of their numbers."""
    agents: dict[str, int] = {}
    rows, rewards = list[tuple[int, ...]](), list[float]()
    turns, temperatures, turn_rewards = list[tuple[int, ...]](), list[float](), list[float]()
    spans = list[tuple[int, int, int]]()
    for each in sequences:
        rows.append(
            (
                each.episode,
                agents.setdefault(each.agent, len(agents)),
                _number(each, prefix),
                len(each.token_ids),
                len(each.turns),
                each.reward is not None,
            )
        )
        rewards.append(0.0 if each.reward is None else each.reward)
        for turn in each.turns:
            reason = _REASONS.get(turn.finish_reason)
            if reason is None:
                raise InvalidRequestError(
                    f"sequence {each.id}: finish reason {turn.finish_reason!r} is none of "
                    f"{sorted(_REASONS)}"
                )
            rewarded = turn.reward is not None
            turns.append(
                (turn.start, turn.end, reason, len(turn.versions), rewarded, turn.truncated)
            )
            temperatures.append(turn.temperature)
            turn_rewards.append(0.0 if turn.reward is None else turn.reward)
            spans += [(span.version, span.start, span.end) for span in turn.versions]
    return tuple(agents), Tables(
        np.array(rows, "<u4").reshape(-1, 6),
        np.array(rewards, "<f8"),
        np.array(turns, "<u4").reshape(-1, 6),
        np.array(temperatures, "<f4"),
        np.array(turn_rewards, "<f8"),
        np.array(spans, "<u8").reshape(-1, 3),
    )


def _number(sequence: Sequence, prefix: str) -> int:
    """The last part of its name, of which all others follow from where it is stored."""
    begin = f"{prefix}{sequence.episode}/{sequence.agent}/"
    number = sequence.id[len(begin) :]
    if not sequence.id.startswith(begin) or not number.isdecimal() or str(int(number)) != number:
        raise InvalidRequestError(
            f"sequence {sequence.id}: is not {prefix}EPISODE/AGENT/SEQ, where it is stored"
        )
    return int(number)


def _check_types(sequence: Sequence) -> None:
    ids, mask, logprobs = sequence.token_ids, sequence.loss_mask, sequence.logprobs
    right = ids.dtype is _ID and mask.dtype is _MASK and logprobs.dtype is _LOGPROB
    if right and ids.shape == mask.shape == logprobs.shape and ids.ndim == 1:
        return  # as always: what follows takes longer
    if ids.dtype != np.int32 or mask.dtype != np.uint8 or logprobs.dtype != np.float32:
        raise InvalidRequestError(
            f"sequence {sequence.id}: token_ids, loss_mask and logprobs are int32, uint8 and "
            f"float32, not {ids.dtype}, {mask.dtype} and {logprobs.dtype}"
        )
    if not ids.ndim == mask.ndim == logprobs.ndim == 1:
        raise InvalidRequestError(
            f"sequence {sequence.id}: token_ids, loss_mask and logprobs have one dimension, not "
            f"{ids.ndim}, {mask.ndim} and {logprobs.ndim}"
        )
    if not len(ids) == len(mask) == len(logprobs):
        raise InvalidRequestError(
            f"sequence {sequence.id}: {len(ids)} token ids, {len(mask)} mask values and "
            f"{len(logprobs)} log-probs; there must be as many of each"
        )
