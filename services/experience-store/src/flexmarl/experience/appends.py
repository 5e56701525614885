"""Writing groups: their data past the server's scripts, then one script that makes them groups.

A script would copy the data several times. Sent before it as a key of its own, data is taken by the
server as it is, and the script gives that key the entry's name. Until then the key is staged: it
vanishes by itself, should this process die in between.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, OutOfMemoryError

from flexmarl.experience import scripts
from flexmarl.experience.arrivals import Arrivals
from flexmarl.experience.entries import encode
from flexmarl.experience.fresh import Fresh, Kept
from flexmarl.experience.keys import Keys
from flexmarl.experience.wire import Part, WireGroup

STAGED_SECONDS = 60
"""Far longer than the script may take to follow."""


@dataclass(frozen=True, slots=True)
class Written:
    """What `scripts.APPEND` said of a group."""

    outcome: str
    """stored, duplicate or fenced; unstaged: no memory; lost: its data vanished on the way."""
    numbers: list[int]
    """That belong to it."""
    size: int
    """Bytes of its data."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """One group's commands."""

    policies: list[str]
    staged: list[tuple[str, Part]]
    """Key and data of each policy."""
    keys: list[str]
    args: list[Any]
    """Of the script."""
    step: int
    played: float | None


class Appends:
    def __init__(self, redis: Redis, keys: Keys, fresh: Fresh, arrivals: Arrivals) -> None:
        self._redis, self._keys, self._fresh, self._arrivals = redis, keys, fresh, arrivals
        self._commit = redis.register_script(scripts.APPEND)

    async def write(
        self, groups: Sequence[WireGroup], played: Sequence[float | None]
    ) -> list[Written]:
        """Each by itself, all in one round trip, after which whoever waits for them is told.

        `played`: when, as `Kept` has it.
        """
        plans = [self._plan(*each) for each in zip(groups, played, strict=True)]
        if not plans:
            return []
        async with self._redis.pipeline(transaction=False) as pipe:
            for plan in plans:
                for key, data in plan.staged:
                    pipe.set(key, data, ex=STAGED_SECONDS)
                pipe.evalsha(self._commit.sha, len(plan.keys), *plan.keys, *plan.args)
            if message := self._arrivals.message():
                pipe.publish(*message)
            replies = iter(await pipe.execute(raise_on_error=False))
        try:
            written = [
                await self._read(plan, [next(replies) for _ in plan.staged], next(replies))
                for plan in plans
            ]
        finally:
            self._arrivals.wake()
        if message and isinstance(listeners := next(replies), int):
            self._arrivals.told(listeners)
        return written

    def _plan(self, group: WireGroup, played: float | None) -> _Plan:
        id_, names, attempt = group.id, self._keys, secrets.token_hex(8)
        policies, staged = list[str](), list[tuple[str, Part]]()
        keys = [names.incarnation, names.closed, names.steps, names.stored(id_.step)]
        keys.append(names.notes(id_.step))
        args: list[Any] = [id_.incarnation, id_.step, id_.index, group.note]
        for samples in group.policies:
            policy, entry = samples.head.policy, encode(group, samples)
            key = names.staged(policy, attempt)
            policies.append(policy)
            staged.append((key, entry.data))
            keys += (key, names.stream(policy), names.entries(policy, id_.step))
            args += (policy, len(entry.data), entry.meta, entry.status)
        return _Plan(policies, staged, keys, args, id_.step, played)

    async def _read(self, plan: _Plan, staging: list[Any], reply: Any) -> Written:
        if isinstance(reply, NoScriptError):  # a server that was started again
            reply = await self._commit(plan.keys, plan.args)
            if message := self._arrivals.message():
                await self._redis.publish(*message)
        failures = [each for each in (*staging, reply) if isinstance(each, Exception)]
        for failure in failures:
            if not isinstance(failure, OutOfMemoryError) or failure is reply:
                raise failure
        outcome, *rest = reply
        if outcome == b"stored":
            lengths, given = rest[::2], rest[1::2]
            for policy, (_, data), name in zip(plan.policies, plan.staged, given, strict=True):
                if name:
                    self._fresh.put(policy, plan.step, name.decode(), Kept(data, plan.played))
            rest = lengths
        lost = outcome == b"unstaged" and not failures
        size = sum(len(data) for _, data in plan.staged)
        return Written("lost" if lost else outcome.decode(), rest, size)
