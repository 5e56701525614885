"""What must hold for samples before anything is stored or trained.

Works on the wire's columns, on those of several groups at once: the store checks thousands of short
sequences per second, and anything done for each of them would be most of its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.columns import (
    AGENT,
    END,
    EPISODE,
    FINISH_REASONS,
    NUMBER,
    OWN_REWARD,
    REASON,
    REWARDED,
    SPAN_END,
    SPAN_START,
    SPANS,
    START,
    TOKENS,
    TURNS,
    VERSION,
    Tables,
    sequence_name,
    starts,
)
from flexmarl.experience.wire import Arrays, WireGroup, WireSamples
from flexmarl.runtime.errors import InvalidRequestError, StalePolicyError

MAX_TOKEN_ID = (1 << 24) - 1
"""No vocabulary is this large; ids with their bytes swapped nearly always are."""
MAX_LOGPROB = 1e-3
"""Zero, and what rounding may add to it."""
_TINY, _HUGE = np.finfo(np.float32).tiny, np.finfo(np.float32).max
"""A log-prob below the one is none of a model, but one with its bytes swapped."""
MAX_COUNTER = 1 << 53
"""Steps, incarnations and epochs stay exact in the store's scripts, which know doubles only."""
JOINED_TOKENS = 1 << 16
"""Up to so many, arrays are joined to be checked at once."""


def group_name(group: pb.GroupId) -> str:
    return f"{group.incarnation}/{group.step}/{group.index}"


def check_groups(
    requests: Iterable[WireGroup], policies: frozenset[str], max_staleness: int
) -> None:
    """InvalidRequestError or StalePolicyError for the first of them that may not be stored.

    Each must carry every trained policy once, at versions that its step may train on.
    """
    parts = list[_Part]()
    for request in requests:
        name, step = _check_identity(request, policies), request.id.step
        oldest = max(0, step - max_staleness)
        for samples in request.policies:
            if len(samples.tables.sequences) and not oldest <= samples.head.version <= step:
                raise _stale(f"group {name}", samples.head.version, samples, name, (oldest, step))
            parts.append(_Part(samples, name, f"group {name}, ", (oldest, step)))
    _check(parts)


def check_samples(samples: WireSamples, group: str) -> None:
    """InvalidRequestError, naming the sequence where it is one's fault, unless every rule holds
    that is no matter of what else the group carries. `group` is its name."""
    _check([_Part(samples, group)])


@dataclass(frozen=True, slots=True)
class _Part:
    samples: WireSamples
    group: str
    of: str = ""
    """In messages: what the samples belong to."""
    versions: tuple[int, int] | None = None
    """The oldest and the newest that are allowed."""


def _check_identity(request: WireGroup, policies: frozenset[str]) -> str:
    """The group's name."""
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
    return name


def _check(parts: Sequence[_Part]) -> None:
    for part in parts:
        _check_lengths(part)
    parts = [part for part in parts if len(part.samples.tables.sequences)]
    if not parts:
        return
    rows = _Rows(parts)
    rows.check_names()
    rows.check_turns()
    rows.check_spans()
    rows.check_rewards()
    first = 0
    for chunk in _chunks(parts):
        own = slice(first, first + len(chunk))
        arrays = [each.samples.arrays for each in chunk]
        if len(arrays) > 1:
            ids, masks, logprobs = zip(*arrays, strict=True)
            arrays = [(b"".join(ids), b"".join(masks), b"".join(logprobs))]
        rows.check_tokens(own, arrays[0])
        first = own.stop


def _check_lengths(part: _Part) -> None:
    """Tables and arrays have as many values as they say of each other."""
    samples = part.samples
    (ids, mask, logprobs), tables, agents = samples.arrays, samples.tables, samples.head.agents
    sequences, turns = tables.sequences, tables.turns
    total = sum(sequences[:, TOKENS].tolist())
    where = f"{part.of}samples of {samples.head.policy!r}"
    if not len(mask) == total == len(ids) / 4 == len(logprobs) / 4:
        raise InvalidRequestError(
            f"{where}: {len(ids) / 4:g} token ids, {len(mask)} mask values and "
            f"{len(logprobs) / 4:g} log-probs in bytes for {total} tokens of "
            f"{len(sequences)} sequences; there must be as many of each"
        )
    if not (
        len(tables.rewards) == len(sequences)
        and len(tables.temperatures) == len(tables.turn_rewards) == len(turns)
        and sum(sequences[:, TURNS].tolist()) == len(turns)
        and sum(turns[:, SPANS].tolist()) == len(tables.spans)
        and max(sequences[:, AGENT].tolist(), default=-1) < len(agents)
    ):
        raise InvalidRequestError(
            f"{where}: its tables of {len(sequences)} sequences, {len(turns)} turns, "
            f"{len(tables.spans)} version spans and {len(agents)} agents do not fit together"
        )


def _chunks(parts: Sequence[_Part]) -> Iterable[Sequence[_Part]]:
    """Parts whose arrays are worth joining."""
    chunk, tokens = list[_Part](), 0
    for part in parts:
        own = len(part.samples.arrays[1])
        if chunk and tokens + own > JOINED_TOKENS:
            yield chunk
            chunk, tokens = [], 0
        chunk.append(part)
        tokens += own
    yield chunk


class _Rows:
    """All sequences, turns and spans of the parts; row numbers count on from part to part."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts
        tables = [part.samples.tables for part in parts]
        self._counts = [len(each.sequences) for each in tables]
        self._sequences, self._turns = _joined(tables, "sequences"), _joined(tables, "turns")
        self._spans, self._tables = _joined(tables, "spans"), tables
        per_sequence, per_turn = self._sequences[:, TURNS], self._turns[:, SPANS]
        self._of_turn = np.repeat(np.arange(len(self._sequences)), per_sequence)
        self._of_span = np.repeat(np.arange(len(self._turns)), per_turn)
        self._first_turns = _begins(per_sequence, len(self._turns))
        self._first_spans = _begins(per_turn, len(self._spans))

    def check_names(self) -> None:
        parts = np.repeat(np.arange(len(self._parts)), self._counts)
        names = [self._sequences[:, column].tolist() for column in (EPISODE, AGENT, NUMBER)]
        keys = list(zip(parts.tolist(), *names, strict=True))
        if len(set(keys)) != len(keys):
            row = next(row for row, key in enumerate(keys) if keys.index(key) != row)
            self._refuse(row, "appears twice")

    def check_turns(self) -> None:
        turns, tokens = self._turns, self._sequences[self._of_turn, TOKENS]
        start, end = turns[:, START], turns[:, END]
        last = _before(end, self._first_turns)
        if (wrong := (last > start) | (start > end) | (end > tokens)).any():
            turn = int(wrong.argmax())
            where = f"[{start[turn]}, {end[turn]}) after {last[turn]} in {tokens[turn]} tokens"
            self._refuse(self._of_turn[turn], f"turn {where}")
        if (wrong := turns[:, REASON] >= len(FINISH_REASONS)).any():
            turn = int(wrong.argmax())
            what = f"finish reason {turns[turn, REASON]} is none of {sorted(FINISH_REASONS)}"
            self._refuse(self._of_turn[turn], what)
        temperatures = _joined(self._tables, "temperatures")
        if (wrong := ~((temperatures >= 0) & (temperatures < np.inf))).any():  # nan is neither
            turn = int(wrong.argmax())
            self._refuse(self._of_turn[turn], f"temperature is {temperatures[turn]}")
        if (wrong := self._sequences[:, TURNS] == 0).any():
            self._refuse(int(wrong.argmax()), "has no turn")

    def check_spans(self) -> None:
        spans, lengths = self._spans, self._turns[:, END] - self._turns[:, START]
        last = _before(spans[:, SPAN_END], self._first_spans)
        wrong = (spans[:, SPAN_START] != last) | (spans[:, SPAN_END] <= last)
        if wrong.any():
            span = int(wrong.argmax())
            where = f"[{spans[span, SPAN_START]}, {spans[span, SPAN_END]}) after {last[span]}"
            self._refuse(self._of_turn[self._of_span[span]], f"version span {where}")
        covered = np.zeros(len(lengths), np.uint64)
        covered[self._of_span] = spans[:, SPAN_END]  # the last one stays
        if (wrong := covered != lengths).any():
            turn = int(wrong.argmax())
            what = f"version spans cover {covered[turn]} of {lengths[turn]} sampled tokens"
            self._refuse(self._of_turn[turn], what)
        self._check_versions()

    def _check_versions(self) -> None:
        if self._parts[0].versions is None:
            return
        allowed = np.array([part.versions for part in self._parts], np.uint64)
        allowed = np.repeat(allowed, self._counts, axis=0)
        of_span = self._of_turn[self._of_span]
        versions = self._spans[:, VERSION]
        wrong = (versions < allowed[of_span, 0]) | (versions > allowed[of_span, 1])
        if wrong.any():
            span = int(wrong.argmax())
            part, name = self._find(of_span[span])
            bounds = part.versions
            assert bounds is not None
            what = f"sequence {name}"
            raise _stale(what, int(versions[span]), part.samples, part.group, bounds)

    def check_rewards(self) -> None:
        rewards = _joined(self._tables, "rewards")
        wrong = (self._sequences[:, REWARDED] != 0) & ~np.isfinite(rewards)
        if wrong.any():
            row = int(wrong.argmax())
            self._refuse(row, f"reward is {rewards[row]}")
        rewards = _joined(self._tables, "turn_rewards")
        wrong = (self._turns[:, OWN_REWARD] != 0) & ~np.isfinite(rewards)
        if wrong.any():
            turn = int(wrong.argmax())
            where = f"[{self._turns[turn, START]}, {self._turns[turn, END]})"
            self._refuse(self._of_turn[turn], f"reward of the turn {where} is {rewards[turn]}")

    def check_tokens(self, parts: slice, arrays: Arrays) -> None:
        """The arrays of these parts end to end."""
        ids, mask, logprobs = arrays
        first, end = sum(self._counts[: parts.start]), sum(self._counts[: parts.stop])
        tokens = self._sequences[first:end, TOKENS]
        if mask != (expected := self._mask(first, end, len(mask))):
            given, wanted = (np.frombuffer(each, np.uint8) for each in (mask, expected))
            at = int((given != wanted).argmax())
            row, place = _place(tokens, at)
            where = "throughout its turns" if wanted[at] else "outside of its turns"
            what = f"the mask is not {wanted[at]} {where}: {given[at]} at position {place}"
            self._refuse(first + row, what)
        if (found := _wrong_value(ids, mask, logprobs)) is not None:
            what, at = found
            row, place = _place(tokens, at)
            self._refuse(first + row, f"{what} at position {place}")

    def _mask(self, first: int, end: int, tokens: int) -> bytearray:
        """What the turns of these sequences ask for."""
        own = slice(*np.searchsorted(self._of_turn, (first, end)))
        offsets = starts(self._sequences[first:end, TOKENS])[self._of_turn[own] - first]
        begins = (offsets + self._turns[own, START]).tolist()
        mask = bytearray(tokens)
        for begin, to in zip(begins, (offsets + self._turns[own, END]).tolist(), strict=True):
            mask[begin:to] = b"\1" * (to - begin)
        return mask

    def _find(self, row: int) -> tuple[_Part, str]:
        """The part of a sequence, and its name."""
        for part, count in zip(self._parts, self._counts, strict=True):
            if row < count:
                samples = part.samples
                own = samples.tables.sequences[row].tolist()
                return part, sequence_name(part.group, tuple(samples.head.agents), own)
            row -= count
        raise IndexError(row)

    def _refuse(self, row: int, what: str) -> NoReturn:
        raise InvalidRequestError(f"sequence {self._find(row)[1]}: {what}")


def _joined(tables: Sequence[Tables], name: str) -> NDArray[Any]:
    columns = [getattr(each, name) for each in tables]
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _begins(counts: NDArray[np.unsignedinteger[Any]], rows: int) -> NDArray[np.bool_]:
    """Of each row, whether it is the first of those that it belongs to."""
    first = np.zeros(rows, np.bool_)
    first[starts(counts)[counts > 0]] = True
    return first


def _before(ends: NDArray[Any], first: NDArray[np.bool_]) -> NDArray[Any]:
    """The end of the row before, 0 for first ones."""
    last = np.empty_like(ends)
    last[1:] = ends[:-1]
    last[first] = 0
    return last


def _place(tokens: NDArray[np.uint32], at: int) -> tuple[int, int]:
    """The sequence that has the arrays' value at `at`, and where in the sequence that is."""
    row = int(np.searchsorted(np.cumsum(tokens, dtype=np.int64), at, side="right"))
    return row, at - int(tokens[:row].sum())


def wrong_logprobs(probs: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Those that no model gives."""
    tiny = (probs != 0) & (np.abs(probs) < _TINY)
    wrong: NDArray[np.bool_] = ~(np.isfinite(probs) & (probs <= MAX_LOGPROB)) | tiny
    return wrong


def _wrong_value(ids: bytes, mask: bytes, logprobs: bytes) -> tuple[str, int] | None:
    tokens = np.frombuffer(ids, "<u4")  # unsigned: a negative id is a huge one
    probs = np.frombuffer(logprobs, "<f4")
    masked = np.frombuffer(mask, np.bool_)
    if not tokens.size:
        return None
    nonzero = probs != 0
    outside = nonzero > masked
    right = tokens.max() <= MAX_TOKEN_ID and probs.min() >= -_HUGE and not outside.any()
    if right and np.array_equal(probs <= -_TINY, nonzero):  # false for nan
        return None  # as nearly always; what follows takes three times as long
    for what, values, wrong in (
        ("token id", tokens.view("<i4"), tokens > MAX_TOKEN_ID),
        ("log-prob", probs, wrong_logprobs(probs)),
        ("log-prob outside of the mask", probs, outside),
    ):
        if wrong.any():
            place = int(wrong.argmax())
            return f"{what} {values[place]}", place
    return None


def _stale(
    what: str, version: int, samples: WireSamples, group: str, allowed: tuple[int, int]
) -> StalePolicyError:
    oldest, newest = allowed
    range_ = f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"
    return StalePolicyError(
        f"{what} was sampled from version {version} of {samples.head.policy!r}; "
        f"group {group} takes {range_}"
    )
