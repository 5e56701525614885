"""What an engine runs: one backend for one policy, or in a pool that of one policy at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from flexmarl.contracts.policy import PolicySpec
from flexmarl.rollout.engines.base import Backend
from flexmarl.runtime.errors import InvalidRequestError


class Models(Protocol):
    """Where an engine gets its backends from."""

    def held(self, policy: str, *, own: bool) -> Backend | None:
        """The backend at hand, if the policy's weights can be loaded into it; None: `build` one.

        `own`: no weights come, those of the policy's source are wanted. InvalidRequestError: this
        engine never serves the policy so.
        """

    async def build(self, policy: str) -> Backend:
        """The policy's own backend, with the weights of its source."""


class OneModel:
    """Of an engine that serves one policy and never another model."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def held(self, policy: str, *, own: bool) -> Backend | None:
        if own:
            raise InvalidRequestError(f"policy {policy!r}: no weights to load are named")
        return self._backend

    async def build(self, policy: str) -> Backend:
        return self._backend


class PoolModels:
    """Of an engine that any of `policies` may be bound to.

    Policies with the same model, tokenizer and engine share a backend: their weights are swapped.
    Another model is built anew, and the one before is forgotten. So are the weights of an untrained
    policy, which nobody publishes.
    """

    def __init__(
        self, policies: Iterable[PolicySpec], make: Callable[[PolicySpec], Backend]
    ) -> None:
        self._policies = {policy.name: policy for policy in policies}
        self._make = make
        self._of: PolicySpec | None = None
        self._backend: Backend | None = None

    def held(self, policy: str, *, own: bool) -> Backend | None:
        wanted = self._policies.get(policy)
        if wanted is None:
            there = ", ".join(sorted(self._policies))
            raise InvalidRequestError(f"{policy!r} is no policy of this engine's pool: {there}")
        if own and wanted.trained:
            raise InvalidRequestError(f"policy {policy!r} is trained: its weights must be named")
        if own or self._of is None or not alike(self._of, wanted):
            self._of = self._backend = None
        return self._backend

    async def build(self, policy: str) -> Backend:
        wanted = self._policies[policy]
        self._backend = await asyncio.to_thread(self._make, wanted)
        self._of = wanted
        return self._backend


def alike(one: PolicySpec, other: PolicySpec) -> bool:
    """Whether weights of the one can be loaded into what runs the other."""
    return (one.model, one.tokenizer, one.engine) == (other.model, other.tokenizer, other.engine)
