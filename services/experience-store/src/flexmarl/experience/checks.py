"""What must hold for samples before anything is stored or trained.

Works on the wire's bytes and on the whole message at once: the store checks thousands of short
sequences per second, and a loop over tokens or a numpy call per sequence would be most of its time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flexmarl.contracts.v1 import experience_pb2 as pb
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


def check_samples(samples: pb.PolicySamples) -> None:
    """InvalidRequestError, naming the sequence, unless every rule holds for every sequence."""
    _check_sequences(samples.sequences)


def check_group(
    request: pb.AppendGroupRequest, policies: frozenset[str], max_staleness: int
) -> None:
    """The group carries every trained policy once, at versions that its step may train on."""
    group = request.id
    if not 0 < group.incarnation < MAX_COUNTER:
        raise InvalidRequestError(f"incarnation is {group.incarnation}; take one first")
    if group.step >= MAX_COUNTER:
        raise InvalidRequestError(f"step is {group.step}, above any that can be counted")
    name = f"{group.incarnation}/{group.step}/{group.index}"
    given = [samples.policy for samples in request.policies]
    if len(given) != len(policies) or policies.difference(given):
        raise InvalidRequestError(
            f"group {name} carries policies {sorted(given)}; "
            f"it must carry each of {sorted(policies)} once, empty where one took no turn"
        )
    oldest, sequences = max(0, group.step - max_staleness), []
    for samples in request.policies:
        if not samples.sequences:
            continue
        _check_versions(name, samples, oldest, group.step)
        for sequence in samples.sequences:
            if not sequence.id.startswith(f"{name}/{sequence.episode}/{sequence.agent}/"):
                raise _wrong(sequence, f"is not {name}/EPISODE/AGENT/SEQ, where it is stored")
            sequences.append(sequence)
    _check_sequences(sequences)


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


def _check_sequences(sequences: Sequence[pb.Sequence]) -> None:
    ids, masks, logprobs, seen = [], [], [], set()
    for sequence in sequences:
        token_ids, mask, probs = sequence.token_ids, sequence.loss_mask, sequence.logprobs
        length = len(mask)
        if len(token_ids) != 4 * length or len(probs) != 4 * length:
            raise _wrong(
                sequence,
                f"bytes of {len(token_ids) / 4:g} token ids, {length} mask values and "
                f"{len(probs) / 4:g} log-probs; there must be as many of each",
            )
        _check_turns(sequence, mask)
        if sequence.HasField("reward") and not math.isfinite(sequence.reward):
            raise _wrong(sequence, f"reward is {sequence.reward}")
        seen.add(sequence.id)
        ids.append(token_ids)
        masks.append(mask)
        logprobs.append(probs)
    if len(seen) != len(sequences):
        names = [sequence.id for sequence in sequences]
        raise _wrong(next(s for s in sequences if names.count(s.id) > 1), "appears twice")
    if seen:
        _check_arrays(sequences, b"".join(ids), b"".join(masks), b"".join(logprobs))


def _check_turns(sequence: pb.Sequence, mask: bytes) -> None:
    last = sampled = 0
    for turn in sequence.turns:
        start, end = turn.start, turn.end
        length = end - start
        if not last <= start <= end <= len(mask):
            raise _wrong(sequence, f"turn [{start}, {end}) after {last} in {len(mask)} tokens")
        if mask.count(1, start, end) != length:
            raise _wrong(sequence, f"the mask is not 1 throughout the turn [{start}, {end})")
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
        sampled += length
        last = end
    if not last and not sequence.turns:
        raise _wrong(sequence, "has no turn")
    if mask.count(1) != sampled or mask.count(0) != len(mask) - sampled:
        raise _wrong(sequence, f"the mask is not 0 outside of its {sampled} sampled tokens")


def _check_arrays(
    sequences: Sequence[pb.Sequence], ids: bytes, mask: bytes, logprobs: bytes
) -> None:
    """Token ids and log-probs of all sequences laid end to end."""
    tokens = np.frombuffer(ids, "<u4")  # unsigned: a negative id is a huge one
    probs = np.frombuffer(logprobs, "<f4")
    masked = np.frombuffer(mask, np.bool_)
    if not tokens.size:
        return
    nonzero = probs != 0
    tiny = nonzero & (np.abs(probs) < _TINY)
    outside = nonzero & ~masked
    if (
        tokens.max() <= MAX_TOKEN_ID
        and -_HUGE <= probs.min() <= probs.max() <= MAX_LOGPROB  # false for nan
        and not tiny.any()
        and not outside.any()
    ):
        return
    ends = np.cumsum([0, *(len(sequence.loss_mask) for sequence in sequences)])
    for what, values, wrong in (
        ("token id", tokens.view("<i4"), tokens > MAX_TOKEN_ID),
        ("log-prob", probs, ~(np.isfinite(probs) & (probs <= MAX_LOGPROB)) | tiny),
        ("log-prob outside of the mask", probs, outside),
    ):
        if wrong.any():
            at = int(wrong.argmax())
            which = int(np.searchsorted(ends, at, side="right")) - 1
            raise _wrong(sequences[which], f"{what} {values[at]} at position {at - ends[which]}")


def _wrong(sequence: pb.Sequence, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"sequence {sequence.id}: {what}")
