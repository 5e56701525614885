"""An engine without a model: tokens and log-probs are a pure function of the request and weights.

For tests, fault injection and simulation. It keeps every rule of the real engines, latencies and
weight updates included, and needs no torch. How long a turn gets follows from prompt and seed
alone, what it says at a position from these and the weights: so one that was cut goes on as the
same turn would have, had its tokens all come from the weights that say the rest.
"""

import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import xxhash

from flexmarl.contracts.job import Transport
from flexmarl.contracts.policy import ScriptedArgs
from flexmarl.contracts.v1 import weights_pb2
from flexmarl.models.tokenizer import Tokenizer
from flexmarl.rollout.engines.base import (
    FinishReason,
    Ids,
    Limits,
    LogProbs,
    Turn,
    WeightsAccess,
)
from flexmarl.runtime.errors import CorruptError, NotFoundError, StalePolicyError
from flexmarl.tensors.client import fetch
from flexmarl.tensors.layout import WEIGHTS, checksum, weights_checksum
from flexmarl.tensors.sets import TensorSet

CONTEXT = 1 << 20
MAX_CONCURRENT_TURNS = 1 << 14
ALPHABET = "abcdefghijklmnopqrstuvwxyz 0123456789"
NOTHING = checksum([])
"""The checksum of no weights: an untrained policy."""
_P99 = NormalDist().inv_cdf(0.99)


@dataclass(slots=True)
class _Script:
    """What a running turn will say under the weights that are held."""

    token_ids: Ids
    logprobs: LogProbs
    reason: FinishReason
    said: int = 0


class ScriptedBackend:
    """`Backend` that makes one token per running turn and step, `tokens_per_second` apart."""

    def __init__(
        self,
        args: ScriptedArgs,
        tokenizer: Tokenizer,
        access: WeightsAccess = WeightsAccess(),  # noqa: B008 - frozen
    ) -> None:
        self.limits = Limits(CONTEXT, tokenizer.vocab_size, MAX_CONCURRENT_TURNS)
        self._pause = 1 / args.tokens_per_second if args.tokens_per_second else 0.0
        self._mean = math.log(args.median_tokens)
        self._deviation = max(math.log(args.p99_tokens / args.median_tokens), 0.0) / _P99
        self._letters = np.array(sorted(set(tokenizer.encode(ALPHABET))), np.int32)
        self._eos = tokenizer.eos_ids[0]
        self._access = access
        self._checksum = NOTHING
        self._scripts: dict[Turn, _Script] = {}
        self._next = 0.0

    @property
    def running(self) -> int:
        return len(self._scripts)

    def progress(self, turn: Turn) -> int:
        return self._scripts[turn].said

    def delay(self) -> float:
        return max(self._next - time.monotonic(), 0.0)

    def admit(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self._scripts[turn] = self._script(turn)

    def step(self) -> tuple[int, list[Turn]]:
        self._next = time.monotonic() + self._pause
        ended = []
        for turn, script in self._scripts.items():
            script.said += 1
            if script.said == len(script.token_ids):
                turn.finish_reason = script.reason
                ended.append(turn)
        sampled = len(self._scripts)
        self.remove(ended)
        return sampled, ended

    def remove(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            script = self._scripts.pop(turn)
            turn.token_ids = script.token_ids[: script.said]
            turn.logprobs = script.logprobs[: script.said]

    async def load(self, ref: weights_pb2.WeightsRef, executor: Executor) -> tuple[float, str]:
        """Check that the version really lies where `ref` says, and follow its checksum."""
        started = time.monotonic()
        found, transport = await self._seen(ref)
        if found != ref.checksum:
            raise CorruptError(f"{ref.set!r} has weights with checksum {found}, not {ref.checksum}")
        self._checksum = found
        for turn, script in self._scripts.items():  # kept by a pause: the rest is said anew
            rest = self._script(turn, script.said)
            said = slice(script.said)
            script.token_ids = np.concatenate((script.token_ids[said], rest.token_ids))
            script.logprobs = np.concatenate((script.logprobs[said], rest.logprobs))
            script.reason = rest.reason
        return time.monotonic() - started, transport

    async def _seen(self, ref: weights_pb2.WeightsRef) -> tuple[str, str]:
        """The checksum of the bytes that `ref` leads to, and how they were reached."""
        if self._access.transport is not Transport.TCP:
            try:
                with TensorSet.open(self._access.shm_dir, ref.set) as tensors:
                    commit = tensors.verify()
                if commit.version != ref.version:
                    raise StalePolicyError(f"{ref.set!r} is at v{commit.version}")
                return commit.checksum, "shm"
            except NotFoundError:
                if self._access.transport is Transport.SHM or not ref.address:
                    raise
        received = await fetch(
            ref.address, ref.set, ref.version, token=self._access.token, prefix=WEIGHTS
        )
        return weights_checksum(received.layout, received.views), "tcp"

    def checksum(self) -> str:
        return self._checksum

    def _script(self, turn: Turn, said: int = 0) -> _Script:
        """What it will say behind the first `said` tokens of this request."""
        request, sampling = turn.request, turn.request.sampling
        behind = request.resumed + said
        prompt = request.prompt_ids[: len(request.prompt_ids) - request.resumed]
        digest = xxhash.xxh3_64(prompt.tobytes())
        if sampling.temperature > 0:
            digest.update(request.seed.to_bytes(8, "little"))
        length = self._lengths(_generator(digest))
        digest.update(self._checksum.encode())
        random = _generator(digest)
        most = request.resumed + turn.max_tokens
        count = max(min(length, most), behind + 1)  # whoever asks to go on gets a token
        tokens = self._letters[random.integers(len(self._letters), size=count)]
        logprobs = -random.random(count, np.float32)
        reason = FinishReason.LENGTH
        if length <= most:
            tokens[-1] = self._eos
            reason = FinishReason.STOP
        tokens, logprobs = tokens[behind:], logprobs[behind:]
        stops = np.flatnonzero(np.isin(tokens, sampling.stop_token_ids))
        if len(stops):
            end = int(stops[0]) + 1
            tokens, logprobs, reason = tokens[:end], logprobs[:end], FinishReason.STOP
        return _Script(tokens, logprobs, reason)

    def _lengths(self, random: np.random.Generator) -> int:
        """Lognormal, at least one: the stop token."""
        return max(1, round(math.exp(self._mean + self._deviation * random.standard_normal())))


def _generator(digest: xxhash.xxh3_64) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(digest.intdigest()))
