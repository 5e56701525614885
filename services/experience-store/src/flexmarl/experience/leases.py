"""Reading groups out of the store, and what happens to those that cannot be read.

Entries and their data do not change, so only finding them needs a transaction; they follow in a
second round trip, past the server's scripts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

import structlog
from prometheus_client import Counter
from redis.asyncio import Redis

from flexmarl.experience import scripts
from flexmarl.experience.entries import Name, UndecodableError, check, remains
from flexmarl.experience.fresh import Fresh, Kept
from flexmarl.experience.keys import Keys
from flexmarl.runtime.errors import InvalidRequestError

LEASED = Counter("flexmarl_experience_leased_groups_total", "Groups handed out.", ["policy"])
DEAD = Counter("flexmarl_experience_dead_letters_total", "Entries not readable.", ["reason"])

DEAD_LETTERS = 64
"""Kept per policy."""
MAX_LEASE_GROUPS = 1024
MAX_LEASE_BYTES = 32 << 20
"""Of one answer, unless its first group alone is larger."""
_CURSOR = re.compile(r"\d{20}-\d{20}")
Place: TypeAlias = tuple[int, int, str]
"""In a policy's stream: epoch, step and cursor."""
log = structlog.get_logger()


def check_cursor(cursor: str) -> None:
    """InvalidRequestError unless it is empty or came with a lease."""
    if cursor and not _CURSOR.fullmatch(cursor):
        raise InvalidRequestError(f"cursor {cursor!r} is none of ours")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader asks for: of one policy's groups of a step those behind the cursor."""

    policy: str
    epoch: int
    step: int
    cursor: str = ""
    limit: int = MAX_LEASE_GROUPS
    """Groups at most."""
    indexes: frozenset[int] = frozenset()
    """Of these alone, if there are any."""

    @property
    def place(self) -> Place:
        return self.epoch, self.step, self.cursor


@dataclass(frozen=True, slots=True)
class Leased:
    groups: list[Kept]
    """Messages of leased groups, as they were stored."""
    cursor: str
    more: bool = False
    """There may be more behind the cursor."""


class LostError(Exception):
    """An entry or its data is not there although it was never deleted."""


class Leases:
    def __init__(self, redis: Redis, keys: Keys, fresh: Fresh) -> None:
        self._redis, self._keys, self._fresh = redis, keys, fresh
        self._locate = redis.register_script(scripts.LOCATE)
        self._discard = redis.register_script(scripts.DISCARD)

    async def read(self, wanted: Wanted) -> Leased:
        """What is there of it; FencedError for an old epoch."""
        keys, policy, step = self._keys, wanted.policy, wanted.step
        cursor, limit = wanted.cursor, wanted.limit
        outcome, *rest = await self._locate(
            [keys.epoch(policy), keys.entries(policy, step)],
            # ";" follows ":" in the alphabet
            [wanted.epoch, f"({cursor};" if cursor else "-", -1 if wanted.indexes else limit],
        )
        scripts.refuse_fenced("epoch", wanted.epoch, outcome, rest)
        named = [Name.parse(raw) for raw in rest[0]]
        if wanted.indexes:
            named = [name for name in named if name.index in wanted.indexes][:limit]
        names = _within(MAX_LEASE_BYTES, named)
        if not names:
            return Leased([], cursor)
        found = {name: self._fresh.take(policy, step, name.text) for name in names}
        absent = [name for name, kept in found.items() if kept is None]
        if absent:
            found |= await self._fetch(policy, step, absent)
        groups = [kept for name in names if (kept := found[name]) is not None]
        LEASED.labels(policy).inc(len(groups))
        more = len(named) >= limit or len(names) < len(named)
        return Leased(groups, names[-1].position, more)

    async def _fetch(self, policy: str, step: int, names: list[Name]) -> dict[Name, Kept | None]:
        """The data of these entries; none of those that cannot be read, which are buried."""
        keys = self._keys
        async with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.xrange(keys.stream(policy), name.stream_id, name.stream_id)
            pipe.mget([keys.data(policy, name.stream_id) for name in names])
            *entries, data = await pipe.execute()
        found: dict[Name, Kept | None] = {}
        for name, entry, own in zip(names, entries, data, strict=True):
            fields = entry[0][1] if entry else {}
            try:
                if not fields or own is None:
                    raise LostError("lost")
                check(fields, own, step, name.index)
                found[name] = Kept(own)
            except (LostError, UndecodableError) as error:
                await self._bury(policy, step, name, remains(fields, own or b""), error)
                found[name] = None
        return found

    async def _bury(
        self, policy: str, step: int, name: Name, left: list[bytes], error: Exception
    ) -> None:
        """Dead letter; its index counts as not stored, so that the orchestrator issues it again."""
        keys, why = self._keys, str(error)
        kept: list[bytes | str | int] = ["dead:reason", why]
        kept += ["dead:step", step, "dead:index", name.index, *left]
        buried = await self._discard(
            [keys.entries(policy, step), keys.stored(step), keys.stream(policy), keys.dead(policy)],
            [name.text, name.index, policy, DEAD_LETTERS, len(kept), *kept],
        )
        if buried:  # else it was committed meanwhile
            DEAD.labels("lost" if isinstance(error, LostError) else "undecodable").inc()
            log.error(
                "entry unreadable, its group must be played again",
                policy=policy,
                step=step,
                index=name.index,
                reason=why,
            )


def _within(most: int, names: list[Name]) -> list[Name]:
    """The first names, at least one, whose data together have at most `most` bytes."""
    total = 0
    for number, name in enumerate(names):
        total += name.size
        if total > most:
            return names[: max(1, number)]
    return names
