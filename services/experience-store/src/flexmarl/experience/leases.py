"""Reading groups out of the store, and what happens to those that cannot be read.

Entries do not change, so only finding them needs a transaction; their payloads follow in a second
round trip, past the server's scripts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import structlog
from prometheus_client import Counter
from redis.asyncio import Redis

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience import scripts
from flexmarl.experience.entries import Name, UndecodableError, decode, remains
from flexmarl.experience.keys import Keys
from flexmarl.runtime.errors import InvalidRequestError

LEASED = Counter("flexmarl_experience_leased_groups_total", "Groups handed out.", ["policy"])
DEAD = Counter("flexmarl_experience_dead_letters_total", "Entries not readable.", ["reason"])

DEAD_LETTERS = 64
"""Kept per policy."""
MAX_LEASE_BYTES = 32 << 20
"""Of one answer, unless its first group alone is larger."""
_CURSOR = re.compile(r"\d{20}-\d{20}")
log = structlog.get_logger()


def check_cursor(cursor: str) -> None:
    """InvalidRequestError unless it is empty or came with a lease."""
    if cursor and not _CURSOR.fullmatch(cursor):
        raise InvalidRequestError(f"cursor {cursor!r} is none of ours")


class Leases:
    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis, self._keys = redis, keys
        self._locate = redis.register_script(scripts.LOCATE)
        self._discard = redis.register_script(scripts.DISCARD)

    async def read(
        self, policy: str, epoch: int, step: int, cursor: str, limit: int
    ) -> pb.LeaseResponse:
        """What is there behind the cursor, at most `limit` groups; FencedError for an old epoch."""
        keys = self._keys
        outcome, *rest = await self._locate(
            [keys.epoch(policy), keys.entries(policy, step)],
            [epoch, f"({cursor};" if cursor else "-", limit],  # ";" follows ":" in the alphabet
        )
        scripts.refuse_fenced("epoch", epoch, outcome, rest)
        names = _within(MAX_LEASE_BYTES, [Name.parse(raw) for raw in rest[0]])
        if not names:
            return pb.LeaseResponse(cursor=cursor)
        async with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.xrange(keys.stream(policy), name.stream_id, name.stream_id)
            found = await pipe.execute()
        lease = pb.LeaseResponse(cursor=names[-1].position)
        for name, entries in zip(names, found, strict=True):
            fields = entries[0][1] if entries else {}
            group = lease.groups.add()
            try:
                decode(fields, into=group)
                if (group.id.step, group.id.index) != (step, name.index):
                    raise UndecodableError(f"it is step {group.id.step}, index {group.id.index}")
            except UndecodableError as error:
                del lease.groups[-1]
                await self._bury(policy, step, name, fields, str(error))
        LEASED.labels(policy).inc(len(lease.groups))
        return lease

    async def _bury(
        self, policy: str, step: int, name: Name, fields: Mapping[bytes, bytes], why: str
    ) -> None:
        """Dead letter; its index counts as not stored, so that the orchestrator issues it again."""
        reason, keys = "undecodable" if fields else "lost", self._keys
        kept: list[bytes | str | int] = ["dead:reason", why if fields else reason]
        kept += ["dead:step", step, "dead:index", name.index, *remains(fields)]
        buried = await self._discard(
            [keys.entries(policy, step), keys.stored(step), keys.stream(policy), keys.dead(policy)],
            [name.text, name.index, policy, DEAD_LETTERS, len(kept), *kept],
        )
        if buried:  # else it was committed meanwhile
            DEAD.labels(reason).inc()
            log.error(
                "entry unreadable, its group must be played again",
                policy=policy,
                step=step,
                index=name.index,
                reason=why if fields else reason,
            )


def _within(most: int, names: list[Name]) -> list[Name]:
    """The first names, at least one, whose payloads together have at most `most` bytes."""
    total = 0
    for number, name in enumerate(names):
        total += name.size
        if total > most:
            return names[: max(1, number)]
    return names
