"""Where a policy's turns are sampled: which engine takes one, and what is tried again.

A turn is always sampled from the version that the group's route names. An engine that is away or
behind is waited for, within a bound; one that is ahead makes the group stale. External APIs are in
`flexmarl.rollout.external`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import structlog
from prometheus_client import Counter

from flexmarl.contracts.v1 import engine_pb2
from flexmarl.experience.samples import VersionSpan
from flexmarl.rollout.conversation import Generated, History, Ids, Tokens
from flexmarl.rollout.engine_client import EngineClient
from flexmarl.runtime.errors import StalePolicyError, UnavailableError

log = structlog.get_logger()
RETRIES = Counter("flexmarl_rollout_turn_retries_total", "Turns asked for again.")

RETRY_SECONDS = 120.0
"""How long an engine may be away: a restart loads libraries and weights."""
FIRST_WAIT_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 2.0
STICKY_TOKENS = 512
"""How much more work the engine that holds the prefix may have than the least busy one."""
MOST_CLIENTS = 64


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """How one turn is sampled."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    """0: off."""


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


class TurnSource(Protocol):
    """Samples the turns of one policy at one version."""

    async def generate(self, call: TurnCall) -> Generated: ...


class EnginePool:
    """A client per engine address, made when first asked for. Use as `async with`."""

    def __init__(
        self, token: str, call_seconds: float, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        self.retry_seconds = retry_seconds
        self._token, self._call_seconds = token, call_seconds
        self._clients: dict[str, EngineClient] = {}
        self._away: set[str] = set()
        self._group = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._running:
            task.cancel()
        try:
            if isinstance(error, asyncio.CancelledError):
                await self._group.__aexit__(kind, error, trace)
            else:  # an error of the block goes on as it is, not inside a group
                await self._group.__aexit__(None, None, None)
        finally:
            for client in self._clients.values():
                await client.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._group.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def client(self, address: str) -> EngineClient:
        found = self._clients.get(address)
        if found is None:
            found = EngineClient(address, self._token, self._spawn, self._call_seconds)
            self._clients[address] = found
            if len(self._clients) > MOST_CLIENTS:
                self._forget_one()
        return found

    def mark_away(self, address: str, why: str) -> None:
        """Said once, however many turns notice."""
        if address not in self._away:
            self._away.add(address)
            log.warning("engine away", address=address, why=why)

    def mark_back(self, address: str) -> None:
        if self._away and address in self._away:
            self._away.discard(address)
            log.info("engine back", address=address)

    def _forget_one(self) -> None:
        """Engines come and go: the longest known idle client makes room."""
        for address, client in self._clients.items():
            if client.idle:
                del self._clients[address]
                self._away.discard(address)
                self._spawn(client.close())
                return


class EnginePolicy:
    """A policy at one version on engines of ours."""

    def __init__(
        self, name: str, version: int, engines: Sequence[str], tokens: Tokens, pool: EnginePool
    ) -> None:
        self.name, self.version = name, version
        self._engines = tuple(engines)
        self._tokens, self._pool = tokens, pool
        self._sampling: dict[SamplingChoice, engine_pb2.Sampling] = {}

    async def generate(self, call: TurnCall) -> Generated:
        """StalePolicyError: the group is void. UnavailableError: no engine came back in time."""
        loop = asyncio.get_running_loop()
        ends, wait = loop.time() + self._pool.retry_seconds, FIRST_WAIT_SECONDS
        address = self._pick(call.engine)
        while True:
            try:
                answer = await self._sample(address, call)
            except UnavailableError as error:
                self._pool.mark_away(address, str(error))
                if loop.time() + wait > ends:
                    raise
            else:
                self._pool.mark_back(address)
                return answer
            # Without jitter: turns that failed together travel together again.
            call.away = True
            RETRIES.inc()
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            address = self._pick("", avoid=address)

    async def _sample(self, address: str, call: TurnCall) -> Generated:
        client = self._pool.client(address)
        assert call.prompt_ids is not None
        request = engine_pb2.TurnRequest(
            prompt_ids=call.prompt_ids.astype("<i4", copy=False).tobytes(),
            seed=call.seed,
            sampling=self._wire_sampling(call.sampling),
        )
        try:
            result = await client.generate(self.name, self.version, request)
        except StalePolicyError as error:
            if await self._behind(client):
                raise UnavailableError(f"engine {address} has yet to load the version") from error
            raise
        if result.finish_reason == "abort":
            raise UnavailableError(f"engine {address} aborted the turn")
        return self._generated(call, result, address)

    def _pick(self, prefer: str, avoid: str = "") -> str:
        if not self._engines:
            raise UnavailableError(f"policy {self.name!r} has no engine")
        if len(self._engines) == 1:
            return self._engines[0]
        loads = {
            address: self._pool.client(address).outstanding
            for address in self._engines
            if address != avoid
        }
        return pick_engine(loads, prefer)

    async def _behind(self, client: EngineClient) -> bool:
        """Whether the engine was restarted and had yet to load what the route names."""
        stats = await client.stats()
        # Equal: it has caught up since.
        return not stats.loaded or (stats.policy == self.name and stats.version <= self.version)

    def _wire_sampling(self, sampling: SamplingChoice) -> engine_pb2.Sampling:
        found = self._sampling.get(sampling)
        if found is None:
            found = self._sampling[sampling] = engine_pb2.Sampling(
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                stop_token_ids=self._tokens.eos_ids,
            )
        return found

    def _generated(self, call: TurnCall, result: engine_pb2.TurnResult, address: str) -> Generated:
        ids = np.frombuffer(result.token_ids, dtype="<i4").astype(np.int32, copy=False)
        logprobs = np.frombuffer(result.logprobs, dtype="<f4").astype(np.float32, copy=False)
        if len(ids) != len(logprobs):
            raise UnavailableError(f"engine {address}: {len(ids)} ids, {len(logprobs)} log-probs")
        if not np.isfinite(logprobs).all():
            raise UnavailableError(f"engine {address}: log-probs that are not finite")
        spans = tuple(VersionSpan(span.version, span.start, span.end) for span in result.versions)
        if sum(span.end - span.start for span in spans) != len(ids):
            raise UnavailableError(f"engine {address}: version spans do not cover the turn")
        if any(span.version != self.version for span in spans):
            raise StalePolicyError(
                f"engine {address}: tokens of {self.name!r} from version "
                f"{[span.version for span in spans]}, wanted {self.version}"
            )
        assert call.prompt_ids is not None
        return Generated(
            text=self._tokens.decode(ids.tolist()),
            token_ids=ids,
            logprobs=logprobs,
            finish_reason=result.finish_reason,
            versions=spans,
            version=self.version,
            prompt_tokens=len(call.prompt_ids),
            sampled_tokens=len(ids),
            engine=address,
        )


def pick_engine(loads: dict[str, int], prefer: str) -> str:
    """The engine with the least outstanding tokens; `prefer` while its lead stays in the margin."""
    least = min(loads, key=lambda address: loads[address])
    if prefer in loads and loads[prefer] <= loads[least] + STICKY_TOKENS:
        return prefer
    return least
