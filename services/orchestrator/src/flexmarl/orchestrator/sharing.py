"""Which policy each engine of a pool serves, and how many engines the pool wants; pure.

A policy's backlog is its turns that wait or are played. As long as engines are no fewer than the
policies with a backlog, each of these has one; else engines go round among them. What is left over
goes where most waits, but only when the difference lasts and is worth the weights' way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

UNBOUND = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """When it is worth it."""

    delta: float
    """Difference of backlogs per engine."""
    hysteresis: float
    """Seconds for which it lasts."""
    cost: float = 0.0
    """Seconds that a change takes, as measured."""
    pace: float | None = None
    """Seconds in which one engine plays one turn, as measured; None: not known yet."""


@dataclass(frozen=True, slots=True)
class Books:
    """What is remembered from one decision to the next."""

    bound: Mapping[str, float] = field(default_factory=dict)
    """Engine -> since when it serves its policy."""
    waiting: Mapping[str, float] = field(default_factory=dict)
    """Policy -> since when it has a backlog and no engine."""
    apart: float | None = None
    """Since when backlogs differ by too much."""


def bind_engines(
    policies: Sequence[str],
    engines: Mapping[str, str],
    backlog: Mapping[str, int],
    books: Books,
    *,
    now: float,
    rules: Rules,
) -> tuple[dict[str, str], Books]:
    """The engines that change, each with its new policy; and the books.

    `engines`: those that answer, with the policy that each serves.
    """
    table = _Table(policies, engines, backlog, books, now)
    for engine in sorted(engine for engine, policy in engines.items() if policy not in policies):
        table.give(engine, table.neediest())
    waiting = {policy: books.waiting.get(policy, now) for policy in table.starving()}
    for policy in sorted(waiting, key=lambda one: (waiting[one], -table.work(one))):
        found = table.spare() or table.oldest(max(rules.hysteresis, 2 * rules.cost))
        if found is not None:
            table.give(found, policy)
    apart = None
    if not table.moves and not waiting and (pair := table.pair(rules.delta)):
        giver, taker = pair
        apart = now if books.apart is None else books.apart
        gain = table.gain(giver, taker) * (rules.pace if rules.pace is not None else math.inf)
        if now - apart >= rules.hysteresis and gain > rules.cost:
            table.give(table.first(giver), taker)
            apart = None
    left = {policy: since for policy, since in waiting.items() if not table.count(policy)}
    return table.moves, Books(table.since, left, apart)


class _Table:
    """Who serves what while it is being decided."""

    def __init__(
        self,
        policies: Sequence[str],
        engines: Mapping[str, str],
        backlog: Mapping[str, int],
        books: Books,
        now: float,
    ) -> None:
        self._policies, self._backlog, self._now = policies, backlog, now
        self._bound = dict(engines)
        self.since = {engine: books.bound.get(engine, now) for engine in engines}
        self.moves: dict[str, str] = {}

    def give(self, engine: str, policy: str) -> None:
        self._bound[engine] = self.moves[engine] = policy
        self.since[engine] = self._now

    def work(self, policy: str) -> int:
        return self._backlog.get(policy, 0)

    def count(self, policy: str) -> int:
        return sum(bound == policy for bound in self._bound.values())

    def load(self, policy: str) -> float:
        return self.work(policy) / max(1, self.count(policy))

    def neediest(self) -> str:
        """Who is to have an engine that nobody has."""
        return max(
            self._policies,
            key=lambda one: (not self.count(one), self.load(one), -self.count(one)),
        )

    def starving(self) -> list[str]:
        return [one for one in self._policies if self.work(one) and not self.count(one)]

    def first(self, policy: str) -> str:
        """Of its engines the one that has served it longest."""
        own = [engine for engine, bound in self._bound.items() if bound == policy]
        return min(own, key=lambda engine: (self.since[engine], engine))

    def spare(self) -> str | None:
        """An engine whose policy has nothing to do, or has another."""
        givers = [
            one
            for one in self._policies
            if self.count(one) > 1 or (self.count(one) and not self.work(one))
        ]
        if not givers:
            return None

        def left(policy: str) -> float:
            """Its backlog per engine without one of them."""
            return self.work(policy) / max(1, self.count(policy) - 1)

        return self.first(min(givers, key=lambda one: (left(one), -self.count(one))))

    def oldest(self, least: float) -> str | None:
        """The engine that has served its policy longest, and for `least` seconds."""
        engine = min(self._bound, key=lambda one: (self.since[one], one), default=None)
        if engine is None or self._now - self.since[engine] < least:
            return None
        return engine

    def pair(self, delta: float) -> tuple[str, str] | None:
        """Who would give an engine to whom: their backlogs per engine are more than delta apart."""
        served = [one for one in self._policies if self.count(one)]
        givers = [one for one in served if self.count(one) > 1 or not self.work(one)]
        if not givers:
            return None
        giver, taker = min(givers, key=self.load), max(served, key=self.load)
        return (giver, taker) if self.load(taker) - self.load(giver) > delta else None

    def gain(self, giver: str, taker: str) -> float:
        """By how much the longer of the two backlogs per engine shrinks."""
        remains = self.count(giver) - 1
        left = self.work(giver) / remains if remains else 0.0
        after = self.work(taker) / (self.count(taker) + 1)
        return self.load(taker) - max(left, after)


def wanted_scale(backlog: Iterable[int], per_engine: int) -> int:
    """Engines that a pool wants: one for each policy with a backlog, and at most `per_engine` turns
    for each engine."""
    waiting = [count for count in backlog if count]
    return max(1, len(waiting), math.ceil(sum(waiting) / per_engine))


def settled_scale(
    wants: Sequence[tuple[float, int]], now: float, window: float
) -> tuple[int, list[tuple[float, int]]]:
    """The most that was wanted in the last `window` seconds, so that a pool grows at once and
    shrinks late; and what of `wants` (moment, engines) still counts."""
    recent = [(moment, count) for moment, count in wants if now - moment <= window]
    # Of earlier ones only those above all later ones can still be the most.
    kept: list[tuple[float, int]] = []
    for moment, count in recent:
        while kept and kept[-1][1] <= count:
            kept.pop()
        kept.append((moment, count))
    return max((count for _, count in kept), default=1), kept
