"""What was sampled of one turn so far, where weight updates may cut it: checked and joined. Pure.

The tokens of a cut turn stay; the rest is asked for with them as the end of the prompt. So the
turn's ids and log-probs are those of its parts laid end to end, and its spans say which version
each token came from. Nothing is tokenised twice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from flexmarl.contracts.v1 import engine_pb2
from flexmarl.experience.checks import MAX_TOKEN_ID, wrong_logprobs
from flexmarl.experience.columns import FINISH_REASONS
from flexmarl.experience.samples import VersionSpan
from flexmarl.rollout.conversation import Logprobs
from flexmarl.rollout.prompts import Ids
from flexmarl.runtime.errors import FlexMARLError, StalePolicyError

CUT = "abort"


class BadAnswerError(FlexMARLError):
    """An engine answered what no engine may; asking again would not help."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Those that may sample a turn."""

    oldest: int
    newest: int

    def __contains__(self, version: int) -> bool:
        return self.oldest <= version <= self.newest

    def __str__(self) -> str:
        if self.oldest == self.newest:
            return str(self.newest)
        return f"{self.oldest} to {self.newest}"


@dataclass(frozen=True, slots=True)
class Part:
    """What one answer of an engine brought."""

    ids: Ids
    logprobs: Logprobs
    spans: tuple[VersionSpan, ...]
    reason: str


def checked(
    result: engine_pb2.TurnResult, versions: Versions, vocabulary: int | None = None
) -> Part:
    """The answer. BadAnswerError: no engine may say this; StalePolicyError: of another version.

    `vocabulary`: one above the highest id of the model; None: not known. The store and the trainer
    refuse the same, but there it is found too late to be the group's trouble alone.
    """
    ids = np.frombuffer(result.token_ids, dtype="<i4").astype(np.int32, copy=False)
    logprobs = np.frombuffer(result.logprobs, dtype="<f4").astype(np.float32, copy=False)
    spans = tuple(VersionSpan(span.version, span.start, span.end) for span in result.versions)
    if len(ids) != len(logprobs):
        raise BadAnswerError(f"{len(ids)} ids, {len(logprobs)} log-probs")
    most = MAX_TOKEN_ID + 1 if vocabulary is None else vocabulary
    for token in (int(ids.min(initial=0)), int(ids.max(initial=0))):
        if not 0 <= token < most:
            raise BadAnswerError(f"token {token}, of a vocabulary of {most}")
    if (wrong := wrong_logprobs(logprobs)).any():
        value = logprobs[wrong][0]
        raise BadAnswerError(
            f"log-prob {value}" if np.isfinite(value) else "log-probs that are not finite"
        )
    if result.finish_reason not in FINISH_REASONS:
        raise BadAnswerError(f"finish reason {result.finish_reason!r}")
    covered = 0
    for span in spans:
        if span.start != covered or span.end <= span.start:
            raise BadAnswerError(f"version span [{span.start}, {span.end}) after {covered}")
        covered = span.end
    if covered != len(ids):
        raise BadAnswerError(f"version spans cover {covered} of {len(ids)} tokens")
    if strange := [span.version for span in spans if span.version not in versions]:
        raise StalePolicyError(f"tokens from version {strange[0]}, wanted {versions}")
    return Part(ids, logprobs, spans, result.finish_reason)


class Partial:
    """One turn of at most `max_tokens`, ended by any id of `stops`."""

    def __init__(self, max_tokens: int, stops: Collection[int]) -> None:
        self._max_tokens, self._stops = max_tokens, stops
        self._ids: list[Ids] = []
        self._logprobs: list[Logprobs] = []
        self.spans: tuple[VersionSpan, ...] = ()
        self.length = 0
        self.parts = 0
        self.reason = ""
        """Why the turn is over; empty: it is not."""

    @property
    def left(self) -> int:
        """Tokens that may still be sampled."""
        return self._max_tokens - self.length

    @property
    def ids(self) -> Ids:
        return np.concatenate(self._ids) if self._ids else np.zeros(0, np.int32)

    @property
    def logprobs(self) -> Logprobs:
        return np.concatenate(self._logprobs) if self._logprobs else np.zeros(0, np.float32)

    def add(self, part: Part) -> None:
        """Go on with `part`. A turn that was cut right after its end is over all the same."""
        if len(part.ids):
            self._ids.append(part.ids)
            self._logprobs.append(part.logprobs)
            self.spans = _joined(self.spans, part.spans, self.length)
            self.length += len(part.ids)
            self.parts += 1
        if part.reason != CUT:
            self.reason = part.reason
        elif len(part.ids) and int(part.ids[-1]) in self._stops:
            self.reason = "stop"
        elif self.left <= 0:
            self.reason = "length"


def _joined(
    before: tuple[VersionSpan, ...], after: tuple[VersionSpan, ...], at: int
) -> tuple[VersionSpan, ...]:
    """`after`, which counts from `at`, behind `before`; neighbours of one version become one."""
    spans = list(before)
    for span in after:
        start, end = span.start + at, span.end + at
        if spans and spans[-1].version == span.version:
            start = spans.pop().start
        spans.append(VersionSpan(span.version, start, end))
    return tuple(spans)
