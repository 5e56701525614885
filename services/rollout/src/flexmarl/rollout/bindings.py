"""Which engines serve which policy, as the orchestrator said last, and who asks for shared ones.

Groups in flight so come to engines that were not ready when they were issued. Policies that share
engines have them in turns, so a turn may have to wait until one serves it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

Order = tuple[int, int]
"""Incarnation and serial of what was said."""


class Bindings:
    """Of all policies; `shared` are those that share engines."""

    def __init__(self, shared: Iterable[str] = ()) -> None:
        self._shared = tuple(shared)
        self._said: Order = (-1, -1)
        self._serving: dict[str, tuple[str, ...]] = {}
        self._there = {policy: asyncio.Event() for policy in self._shared}
        self._asking: Counter[str] = Counter()
        self._done: Counter[str] = Counter()

    def shares(self, policy: str) -> bool:
        return policy in self._there

    def tell(self, order: Order, serving: Mapping[str, Iterable[str]]) -> None:
        """From now on these serve; what was said earlier and comes late changes nothing."""
        if order < self._said:
            return
        self._said = order
        self._serving = {policy: tuple(engines) for policy, engines in serving.items()}
        for policy, there in self._there.items():
            if self.serving(policy):
                there.set()
            else:
                there.clear()

    def serving(self, policy: str) -> tuple[str, ...]:
        """Empty: nobody does for the moment."""
        return self._serving.get(policy, ())

    async def served(self, policy: str) -> None:
        """Return once somebody serves the policy, one of those that share."""
        await self._there[policy].wait()

    @contextmanager
    def asking(self, policy: str) -> Iterator[None]:
        """While a turn of the policy wants to be sampled, where that is worth knowing."""
        if not self.shares(policy):
            yield
            return
        self._asking[policy] += 1
        try:
            yield
            self._done[policy] += 1
        finally:
            self._asking[policy] -= 1

    def work(self) -> dict[str, tuple[int, int]]:
        """By policy that shares: turns that want to be sampled, and those that were."""
        return {policy: (self._asking[policy], self._done[policy]) for policy in self._shared}
