"""The interface of every engine, in vLLM's words, and the data that crosses it.

Nothing here imports torch: the scripted engine and the tests of its callers need none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flexmarl.contracts.job import Transport
from flexmarl.contracts.v1 import weights_pb2

Ids = NDArray[np.int32]
LogProbs = NDArray[np.float32]


class FinishReason(StrEnum):
    STOP = "stop"
    """A stop token was sampled; it is the last of the ids."""
    LENGTH = "length"
    """max_tokens, or the end of the model's context."""
    ABORT = "abort"
    """Cut off; the ids so far are right."""


class PauseMode(StrEnum):
    ABORT = "abort"
    WAIT = "wait"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a turn draws its tokens.

    Log-probs are those of the distribution drawn from: after temperature, top-k and top-p, as with
    vLLM's `processed_logprobs`. Temperature 0 takes the most likely token; as in vLLM its log-prob
    is that at temperature 1 without top-k and top-p.
    """

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnRequest:
    id: str
    prompt_ids: Ids
    seed: int
    sampling: Sampling
    resumed: int = 0
    """How many of the prompt's last ids are the first tokens of this turn, which a weight update
    cut; such a turn goes before those that are new."""


class VersionSpan(NamedTuple):
    """Sampled tokens [start, end) came from this version of the weights."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TurnResult:
    id: str
    token_ids: Ids
    logprobs: LogProbs
    finish_reason: FinishReason
    versions: tuple[VersionSpan, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The weights that an engine holds; `checksum` is computed from its own tensors."""

    policy: str
    version: int
    checksum: str
    seconds: float = 0.0
    transport: str = ""


@dataclass(frozen=True, slots=True)
class Stats:
    loaded: Loaded | None
    running: int
    waiting: int
    outstanding_tokens: int
    generated_tokens: int
    calls: int
    turns: int


class Engine(Protocol):
    """One inference instance."""

    def generate(
        self,
        policy: str,
        version: int,
        turns: Sequence[TurnRequest],
        min_version: int | None = None,
    ) -> AsyncIterator[list[TurnResult]]:
        """Turns as they finish, those of one decode step together.

        StalePolicyError unless a version from `min_version` (None: `version`) to `version` of the
        policy is loaded, InvalidRequestError naming the first turn that can never run. Closing the
        iterator aborts what is unfinished.
        """

    async def load_weights(self, policy: str, ref: weights_pb2.WeightsRef | None) -> Loaded:
        """Take other weights, of this policy or another that the engine may serve; None: those of
        the source of a policy that is not trained. Turns in flight come back as `abort` with what
        they have.

        After pause(keep), turns of the same policy go on instead: their KV cache is NOT recomputed,
        tokens sampled from then on see keys and values of the older version, and the turn's
        version spans say where the border lies.
        """

    async def pause(self, mode: PauseMode) -> None:
        """Stop generating; returns once nothing moves. New turns are taken and wait."""

    async def resume(self) -> None: ...

    async def abort(self, ids: Sequence[str]) -> None:
        """Finish these turns with what they have; unknown ids are ignored."""

    def stats(self) -> Stats: ...


@dataclass(frozen=True, slots=True)
class WeightsAccess:
    """How this process reaches tensor sets."""

    shm_dir: Path = Path("/dev/shm")
    transport: Transport = Transport.AUTO
    token: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a backend can take."""

    context: int
    """Longest prompt and sampled tokens together."""
    vocab_size: int
    max_concurrent_turns: int


@dataclass(slots=True, eq=False)
class Turn:
    """One turn inside an engine."""

    request: TurnRequest
    max_tokens: int
    """Capped to the context."""
    token_ids: Ids = field(default_factory=lambda: np.empty(0, np.int32))
    logprobs: LogProbs = field(default_factory=lambda: np.empty(0, np.float32))
    finish_reason: FinishReason = FinishReason.ABORT
    borders: list[tuple[int, int]] = field(default_factory=list)
    """(version, end) of the tokens that earlier weights sampled."""

    def result(self, version: int) -> TurnResult:
        """The finished turn; what no border covers came from `version`."""
        spans, start = [], 0
        for older, end in [*self.borders, (version, len(self.token_ids))]:
            if end > start:
                spans.append(VersionSpan(older, start, end))
            start = end
        return TurnResult(
            self.request.id, self.token_ids, self.logprobs, self.finish_reason, tuple(spans)
        )


class Backend(Protocol):
    """What runs the turns; called from the engine's one thread, `load` excepted."""

    @property
    def limits(self) -> Limits: ...

    @property
    def running(self) -> int: ...

    def admit(self, turns: Sequence[Turn]) -> None:
        """Start turns; never more than fit beside those running."""

    def step(self) -> tuple[int, list[Turn]]:
        """One token for every running turn: how many were sampled, and the turns that ended."""

    def remove(self, turns: Sequence[Turn]) -> None:
        """Take running turns out, as finished by abort with the tokens they have."""

    def progress(self, turn: Turn) -> int:
        """Tokens sampled so far by a running turn."""

    def delay(self) -> float:
        """Seconds until the next step may run."""

    async def load(self, ref: weights_pb2.WeightsRef, executor: Executor) -> tuple[float, str]:
        """Take the version; seconds and transport. Work on the weights runs in `executor`."""

    def checksum(self) -> str:
        """Of the weights that are held."""
