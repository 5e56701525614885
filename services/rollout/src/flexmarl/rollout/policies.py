"""Where a policy's turns are sampled: which engine takes one, and what is tried again.

A turn is sampled from the versions that the group's route allows: one, or a few. An engine that is
away or behind is waited for, within a bound; one that is ahead makes the group stale. Where older
versions do, a turn that a weight update cut keeps its tokens and goes on at the new version; where
they do not, it is sampled again. External APIs are in `flexmarl.rollout.external`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from prometheus_client import Counter

from flexmarl.contracts.v1 import engine_pb2
from flexmarl.rollout.bindings import Bindings
from flexmarl.rollout.conversation import Generated
from flexmarl.rollout.engine_client import EngineClient, Wanted
from flexmarl.rollout.engine_pool import EnginePool
from flexmarl.rollout.partial import CUT, BadAnswerError, Partial, Versions, checked
from flexmarl.rollout.prompts import History, Ids, Tokens
from flexmarl.runtime.errors import StalePolicyError, UnavailableError

RETRIES = Counter("flexmarl_rollout_turn_retries_total", "Turns asked for again.")

FIRST_WAIT_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 2.0
ACCEPTED_SECONDS = 5.0
"""An engine that did not refuse a turn for so long is at it."""
STICKY_TOKENS = 512
"""How much more work the engine that holds the prefix may have than the least busy one."""


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """How one turn is sampled."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    """0: off."""

    @property
    def truncates(self) -> bool:
        """Whether log-probs are not of the whole distribution."""
        return self.top_p < 1 or self.top_k > 0


@dataclass(eq=False, slots=True)
class TurnCall:
    """One turn to be sampled."""

    history: History
    prompt_ids: Ids | None
    """None for external policies."""
    sampling: SamplingChoice
    seed: int
    engine: str = ""
    """Which engine holds the prefix; empty: none."""
    away: bool = False
    """Set while whoever should answer is being waited for."""

    def accepted(self) -> None:
        self.away = False


class TurnSource(Protocol):
    """Samples the turns of one policy at one version."""

    async def generate(self, call: TurnCall) -> Generated: ...


class NotYetError(UnavailableError):
    """The engine is at a weight update, or has yet to take one."""


class Patience:
    """How long an engine is waited for, from its first refusal in a row, and until the next try."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        self._ends: float | None = None
        self._wait = FIRST_WAIT_SECONDS

    def wait(self, now: float) -> float | None:
        """Seconds until the next try; None: there is none."""
        if self._ends is None:
            self._ends = now + self._seconds
        wait, self._wait = self._wait, min(2 * self._wait, LONGEST_WAIT_SECONDS)
        return wait if now + wait <= self._ends else None


class EnginePolicy:
    """A policy at the versions of a route on engines of ours."""

    def __init__(
        self,
        name: str,
        version: int,
        engines: Sequence[str],
        tokens: Tokens,
        pool: EnginePool,
        *,
        vocabulary: int | None = None,
        min_version: int | None = None,
        bindings: Bindings | None = None,
    ) -> None:
        """`vocabulary`: one above the highest id of its model, where that is known. `min_version`:
        the oldest that will do; None: `version` alone. `bindings` says who serves
        the policy beside `engines`, which may change at any time."""
        self.name = name
        self._bindings = bindings or Bindings()
        self._shares = self._bindings.shares(name)
        self.versions = Versions(version if min_version is None else min_version, version)
        self._resumes = min_version is not None
        self._wanted = Wanted(name, self.versions.oldest, version)
        self._engines = tuple(engines)
        self._tokens, self._vocabulary, self._pool = tokens, vocabulary, pool
        self._sampling: dict[SamplingChoice, engine_pb2.Sampling] = {}

    async def generate(self, call: TurnCall) -> Generated:
        """StalePolicyError: the group is void. UnavailableError: no engine came back in time."""
        with self._bindings.asking(self.name):
            return await self._generate(call)

    async def _generate(self, call: TurnCall) -> Generated:
        loop = asyncio.get_running_loop()
        patience = Patience(self._pool.retry_seconds)
        so_far = Partial(call.sampling.max_tokens, self._tokens.eos_ids)
        address = await self._pick(call, patience, prefer=call.engine)
        while True:
            accepted = loop.call_later(ACCEPTED_SECONDS, call.accepted) if call.away else None
            try:
                await self._sample(address, call, so_far)
            except UnavailableError as error:
                # Where turns go on over updates, an engine that is at one is nothing to tell of,
                # and nothing is one that serves another policy now.
                usual = self._resumes or self._shares
                if not (usual and isinstance(error, NotYetError)):
                    self._pool.mark_away(address, str(error))
                wait = patience.wait(loop.time())
                if wait is None:
                    raise
            else:
                self._pool.mark_back(address)
                if so_far.reason:
                    return self._generated(call, so_far, address)
                patience.renew()
                wait = FIRST_WAIT_SECONDS
            finally:
                if accepted is not None:
                    accepted.cancel()
            # Without jitter: turns that failed together travel together again.
            call.away = True
            RETRIES.inc()
            await asyncio.sleep(wait)
            address = await self._pick(call, patience, avoid=address)

    async def _sample(self, address: str, call: TurnCall, so_far: Partial) -> None:
        """Ask for the rest of the turn; what was sampled of it is then part of `so_far`."""
        client = self._pool.client(address)
        try:
            result = await client.generate(self._wanted, self._request(call, so_far))
        except StalePolicyError as error:
            if await self._behind(client):
                raise NotYetError(f"engine {address} does not hold the version now") from error
            raise
        cut = result.finish_reason == CUT
        if cut and not (self._resumes and result.token_ids):
            raise NotYetError(f"engine {address} aborted the turn")
        try:
            so_far.add(checked(result, self.versions, self._vocabulary))
        except StalePolicyError as error:
            raise StalePolicyError(f"engine {address}: {self.name!r}: {error}") from error
        except BadAnswerError as error:
            self._pool.mark_wrong(address, str(error))
            raise BadAnswerError(f"engine {address}: {self.name!r}: {error}") from error

    def _request(self, call: TurnCall, so_far: Partial) -> engine_pb2.TurnRequest:
        assert call.prompt_ids is not None
        if not so_far.length:
            return engine_pb2.TurnRequest(
                prompt_ids=call.prompt_ids.astype("<i4", copy=False).tobytes(),
                seed=call.seed,
                sampling=self._wire_sampling(call.sampling),
            )
        prompt = np.concatenate((call.prompt_ids, so_far.ids))
        return engine_pb2.TurnRequest(
            prompt_ids=prompt.astype("<i4", copy=False).tobytes(),
            seed=call.seed,
            sampling=self._made_sampling(replace(call.sampling, max_tokens=so_far.left)),
            resumed=so_far.length,
        )

    async def _pick(
        self, call: TurnCall, patience: Patience, *, prefer: str = "", avoid: str = ""
    ) -> str:
        while not (engines := self._known()) and self._shares:
            call.away = True
            await self._bindings.served(self.name)
            patience.renew()  # it was nobody's turn to answer
        if not engines:
            raise UnavailableError(f"policy {self.name!r} has no engine")
        if len(engines) == 1:
            return engines[0]
        loads = {
            address: self._pool.client(address).load for address in engines if address != avoid
        }
        return pick_engine(loads, prefer)

    def _known(self) -> Sequence[str]:
        """Engines that were ready when the group was issued, and those that are now."""
        now = self._bindings.serving(self.name)
        if now == self._engines:
            return now
        return tuple(dict.fromkeys(self._engines + now))

    async def _behind(self, client: EngineClient) -> bool:
        """Whether the engine was restarted and had yet to load what the route names, or serves
        another policy of its pool by now."""
        stats = await client.stats()
        if self._shares and stats.policy != self.name:
            return True
        # Not above: it has caught up since.
        return not stats.loaded or (
            stats.policy == self.name and stats.version <= self.versions.newest
        )

    def _wire_sampling(self, sampling: SamplingChoice) -> engine_pb2.Sampling:
        found = self._sampling.get(sampling)
        if found is None:
            found = self._sampling[sampling] = self._made_sampling(sampling)
        return found

    def _made_sampling(self, sampling: SamplingChoice) -> engine_pb2.Sampling:
        return engine_pb2.Sampling(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop_token_ids=self._tokens.eos_ids,
        )

    def _generated(self, call: TurnCall, whole: Partial, address: str) -> Generated:
        assert call.prompt_ids is not None
        ids = whole.ids
        return Generated(
            text=self._tokens.decode(ids.tolist()),
            token_ids=ids,
            logprobs=whole.logprobs,
            finish_reason=whole.reason,
            versions=whole.spans,
            version=min((span.version for span in whole.spans), default=self.versions.newest),
            prompt_tokens=len(call.prompt_ids),
            sampled_tokens=len(ids),
            engine=address,
            resumed=whole.parts > 1,
        )


def pick_engine(loads: dict[str, int], prefer: str) -> str:
    """The engine with the least to do, in tokens; `prefer` while its lead stays in the margin."""
    least = min(loads, key=lambda address: loads[address])
    if prefer in loads and loads[prefer] <= loads[least] + STICKY_TOKENS:
        return prefer
    return least
