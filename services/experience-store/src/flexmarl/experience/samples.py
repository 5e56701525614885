"""What the policies learn from one group, as arrays, and its translation from and to the wire.

On the wire arrays are raw little-endian bytes inside protobuf, never pickle. Those that come from
it are read-only.

Both directions check every rule of `checks`, unless told that the store does or did: it lets
nothing in without that, and nothing out whose bytes changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.checks import check_samples
from flexmarl.experience.wire import (
    Part,
    WireGroup,
    WireSamples,
    group_message,
    read_samples,
    samples_message,
)
from flexmarl.runtime.errors import InvalidRequestError


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
    samples: PolicySamples


def to_wire(samples: PolicySamples) -> bytes:
    """The message of `samples`; InvalidRequestError names the sequence that breaks a rule."""
    raw = b"".join(_message(samples))
    check_samples(read_samples(raw))
    return raw


def from_wire(raw: Part) -> PolicySamples:
    """The samples in a message; InvalidRequestError names the sequence that breaks a rule."""
    wire = read_samples(raw)
    check_samples(wire)
    return _from_wire(wire)


def group_to_wire(
    group: GroupId, task_id: str, policies: Iterable[PolicySamples], note: bytes = b""
) -> list[Part]:
    """Parts of an offered group; the store checks more than that arrays are what they shall be."""
    return group_message(group_id_to_wire(group), task_id, map(_message, policies), note)


def leased_from_wire(wire: WireGroup) -> LeasedGroup:
    """A group that comes out of the store, so it was checked."""
    [samples] = wire.policies
    return LeasedGroup(group_id_from_wire(wire.id), wire.task_id, _from_wire(samples))


def group_id_to_wire(group: GroupId) -> pb.GroupId:
    return pb.GroupId(incarnation=group.incarnation, step=group.step, index=group.index)


def group_id_from_wire(message: pb.GroupId) -> GroupId:
    return GroupId(message.incarnation, message.step, message.index)


def _message(samples: PolicySamples) -> list[Part]:
    sequences = samples.sequences
    for sequence in sequences:
        _check_types(sequence)
    head = pb.PolicySamples(
        policy=samples.policy,
        version=samples.version,
        sequences=[_sequence_to_wire(sequence) for sequence in sequences],
    )
    return samples_message(
        head,
        (
            [np.ascontiguousarray(each.token_ids, "<i4").data for each in sequences],
            [np.ascontiguousarray(each.loss_mask, "u1").data for each in sequences],
            [np.ascontiguousarray(each.logprobs, "<f4").data for each in sequences],
        ),
    )


def _from_wire(wire: WireSamples) -> PolicySamples:
    raw_ids, raw_mask, raw_logprobs = wire.arrays
    ids = np.frombuffer(raw_ids, "<i4")
    mask = np.frombuffer(raw_mask, np.uint8)
    logprobs = np.frombuffer(raw_logprobs, "<f4")
    sequences, start = [], 0
    for each in wire.head.sequences:
        own = slice(start, start + each.tokens)
        sequences.append(_sequence_from_wire(each, ids[own], mask[own], logprobs[own]))
        start = own.stop
    return PolicySamples(wire.head.policy, wire.head.version, tuple(sequences))


def _check_types(sequence: Sequence) -> None:
    ids, mask, logprobs = sequence.token_ids, sequence.loss_mask, sequence.logprobs
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


def _sequence_to_wire(sequence: Sequence) -> pb.Sequence:
    return pb.Sequence(
        id=sequence.id,
        agent=sequence.agent,
        episode=sequence.episode,
        tokens=len(sequence.token_ids),
        turns=[
            pb.TurnSpan(
                start=turn.start,
                end=turn.end,
                versions=[
                    pb.VersionSpan(version=span.version, start=span.start, end=span.end)
                    for span in turn.versions
                ],
                finish_reason=turn.finish_reason,
                temperature=turn.temperature,
                reward=turn.reward,
            )
            for turn in sequence.turns
        ],
        reward=sequence.reward,
    )


def _sequence_from_wire(
    message: pb.Sequence,
    ids: NDArray[np.int32],
    mask: NDArray[np.uint8],
    logprobs: NDArray[np.float32],
) -> Sequence:
    return Sequence(
        id=message.id,
        agent=message.agent,
        episode=message.episode,
        token_ids=ids,
        loss_mask=mask,
        logprobs=logprobs,
        turns=tuple(
            TurnSpan(
                start=turn.start,
                end=turn.end,
                versions=tuple(
                    VersionSpan(span.version, span.start, span.end) for span in turn.versions
                ),
                finish_reason=turn.finish_reason,
                temperature=turn.temperature,
                reward=turn.reward if turn.HasField("reward") else None,
            )
            for turn in message.turns
        ),
        reward=message.reward if message.HasField("reward") else None,
    )
