"""What must hold for samples before anything is stored or trained.

Works on the wire's bytes and on all sequences at once: the store checks thousands of short ones per
second, and a loop over tokens or a numpy call per sequence would be most of its time.
"""

from __future__ import annotations

import math

import numpy as np

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.wire import WireGroup, WireSamples
from flexmarl.runtime.errors import InvalidRequestError, StalePolicyError

FINISH_REASONS = frozenset({"stop", "length", "abort"})
MAX_TOKEN_ID = (1 << 24) - 1
"""No vocabulary is this large; ids with their bytes swapped nearly always are."""
MAX_LOGPROB = 1e-3
"""Zero, and what rounding may add to it."""
_TINY, _HUGE = np.finfo(np.float32).tiny, np.finfo(np.float32).max
"""A log-prob below the one is none of a model, but one with its bytes swapped."""
MAX_COUNTER = 1 << 53
"""Steps, incarnations and epochs stay exact in the store's scripts, which know doubles only."""


def group_name(group: pb.GroupId) -> str:
    return f"{group.incarnation}/{group.step}/{group.index}"


def check_samples(wire: WireSamples, of: str = "") -> None:
    """InvalidRequestError, naming the sequence where it is one's fault, unless every rule holds.
    `of` says in messages what the samples belong to.
    """
    (ids, mask, logprobs), samples = wire.arrays, wire.head
    sequences = list(samples.sequences)
    total = sum([sequence.tokens for sequence in sequences])
    if not len(mask) == total == len(ids) / 4 == len(logprobs) / 4:
        raise InvalidRequestError(
            f"{of}samples of {samples.policy!r}: {len(ids) / 4:g} token ids, {len(mask)} mask "
            f"values and {len(logprobs) / 4:g} log-probs in bytes for {total} tokens of "
            f"{len(sequences)} sequences; there must be as many of each"
        )
    if not sequences:
        return
    if len({sequence.id for sequence in sequences}) != len(sequences):
        names = [sequence.id for sequence in sequences]
        raise _wrong(next(s for s in sequences if names.count(s.id) > 1), "appears twice")
    expected: list[bytes] = []
    for sequence in sequences:
        _check_turns(sequence, expected)
        if sequence.HasField("reward") and not math.isfinite(sequence.reward):
            raise _wrong(sequence, f"reward is {sequence.reward}")
    if b"".join(expected) != mask:
        raise _wrong_mask(samples, mask, b"".join(expected))
    _check_arrays(samples, ids, mask, logprobs)


def check_group(request: WireGroup, policies: frozenset[str], max_staleness: int) -> None:
    """The group must carry every trained policy once, at versions that its step may train on."""
    group = request.id
    if not 0 < group.incarnation < MAX_COUNTER:
        raise InvalidRequestError(f"incarnation is {group.incarnation}; take one first")
    if group.step >= MAX_COUNTER:
        raise InvalidRequestError(f"step is {group.step}, above any that can be counted")
    name = group_name(group)
    given = [samples.head.policy for samples in request.policies]
    if len(given) != len(policies) or policies.difference(given):
        raise InvalidRequestError(
            f"group {name} carries policies {sorted(given)}; "
            f"it must carry each of {sorted(policies)} once, empty where one took no turn"
        )
    oldest = max(0, group.step - max_staleness)
    for samples in (each.head for each in request.policies):
        if not samples.sequences:
            continue
        _check_versions(name, samples, oldest, group.step)
        for sequence in samples.sequences:
            if not sequence.id.startswith(f"{name}/{sequence.episode}/{sequence.agent}/"):
                raise _wrong(sequence, f"is not {name}/EPISODE/AGENT/SEQ, where it is stored")
    for each in request.policies:
        check_samples(each, f"group {name}, ")


def _check_versions(name: str, samples: pb.PolicySamples, oldest: int, newest: int) -> None:
    def refuse(what: str, version: int) -> StalePolicyError:
        allowed = f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"
        return StalePolicyError(
            f"{what} was sampled from version {version} of {samples.policy!r}; "
            f"group {name} takes {allowed}"
        )

    if not oldest <= samples.version <= newest:
        raise refuse(f"group {name}", samples.version)
    for sequence in samples.sequences:
        for turn in sequence.turns:
            for span in turn.versions:
                if not oldest <= span.version <= newest:
                    raise refuse(f"sequence {sequence.id}", span.version)


def _check_turns(sequence: pb.Sequence, mask: list[bytes]) -> None:
    """Appends the mask that the turns ask for."""
    last = 0
    for turn in sequence.turns:
        start, end = turn.start, turn.end
        length = end - start
        if not last <= start <= end <= sequence.tokens:
            raise _wrong(
                sequence, f"turn [{start}, {end}) after {last} in {sequence.tokens} tokens"
            )
        if turn.finish_reason not in FINISH_REASONS:
            raise _wrong(
                sequence,
                f"finish reason {turn.finish_reason!r} is none of {sorted(FINISH_REASONS)}",
            )
        if not 0 <= turn.temperature < math.inf:
            raise _wrong(sequence, f"temperature is {turn.temperature}")
        if turn.HasField("reward") and not math.isfinite(turn.reward):
            raise _wrong(sequence, f"reward of the turn [{start}, {end}) is {turn.reward}")
        at = 0
        for span in turn.versions:
            if span.start != at or span.end <= at:
                raise _wrong(sequence, f"version span [{span.start}, {span.end}) after {at}")
            at = span.end
        if at != length:
            raise _wrong(sequence, f"version spans cover {at} of {length} sampled tokens")
        mask += (bytes(start - last), b"\1" * length)
        last = end
    if not last and not sequence.turns:
        raise _wrong(sequence, "has no turn")
    mask.append(bytes(sequence.tokens - last))


def _check_arrays(samples: pb.PolicySamples, ids: bytes, mask: bytes, logprobs: bytes) -> None:
    tokens = np.frombuffer(ids, "<u4")  # unsigned: a negative id is a huge one
    probs = np.frombuffer(logprobs, "<f4")
    masked = np.frombuffer(mask, np.bool_)
    if not tokens.size:
        return
    nonzero = probs != 0
    outside = nonzero > masked
    right = tokens.max() <= MAX_TOKEN_ID and probs.min() >= -_HUGE and not outside.any()
    if right and np.array_equal(probs <= -_TINY, nonzero):  # false for nan
        return  # as nearly always; what follows takes three times as long
    tiny = nonzero & (np.abs(probs) < _TINY)
    if right and probs.max() <= MAX_LOGPROB and not tiny.any():
        return
    for what, values, wrong in (
        ("token id", tokens.view("<i4"), tokens > MAX_TOKEN_ID),
        ("log-prob", probs, ~(np.isfinite(probs) & (probs <= MAX_LOGPROB)) | tiny),
        ("log-prob outside of the mask", probs, outside),
    ):
        if wrong.any():
            place = int(wrong.argmax())
            sequence, at = _place(samples, place)
            raise _wrong(sequence, f"{what} {values[place]} at position {at}")


def _wrong_mask(samples: pb.PolicySamples, mask: bytes, expected: bytes) -> InvalidRequestError:
    pairs = enumerate(zip(mask, expected, strict=True))
    place, (given, wanted) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
    sequence, at = _place(samples, place)
    where = "throughout its turns" if wanted else "outside of its turns"
    return _wrong(sequence, f"the mask is not {wanted} {where}: {given} at position {at}")


def _place(samples: pb.PolicySamples, place: int) -> tuple[pb.Sequence, int]:
    """The sequence that has the arrays' value at `place`, and where in the sequence that is."""
    for sequence in samples.sequences:
        if place < sequence.tokens:
            return sequence, place
        place -= sequence.tokens
    raise IndexError(place)


def _wrong(sequence: pb.Sequence, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"sequence {sequence.id}: {what}")
