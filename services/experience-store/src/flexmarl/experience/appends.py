"""Writing groups: their data past the server's scripts, then one script that makes them groups.

A script would copy the data several times. Sent before it as a key of its own, data is taken by the
server as it is, and the script gives that key the entry's name. Until then the key is staged: it
vanishes by itself, should this process die in between.
"""

from __future__ import annotations

import secrets
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, OutOfMemoryError

from flexmarl.experience import scripts
from flexmarl.experience.entries import encode
from flexmarl.experience.fresh import Fresh
from flexmarl.experience.keys import Keys
from flexmarl.experience.wire import WireGroup
from flexmarl.runtime.errors import UnavailableError

STAGED_SECONDS = 60
"""Far longer than the script may take to follow."""


class Appends:
    def __init__(self, redis: Redis, keys: Keys, fresh: Fresh) -> None:
        self._redis, self._keys, self._fresh = redis, keys, fresh
        self._commit = redis.register_script(scripts.APPEND)

    async def write(self, group: WireGroup) -> tuple[str, list[int], int]:
        """What `scripts.APPEND` says: stored, duplicate, fenced or unstaged, which is: no memory;
        numbers that belong to it; bytes of the data.
        """
        id_, names = group.id, self._keys
        entries = [(samples.head.policy, encode(group, samples)) for samples in group.policies]
        attempt = secrets.token_hex(8)
        keys = [names.incarnation, names.closed, names.steps, names.stored(id_.step)]
        keys.append(names.notes(id_.step))
        args: list[Any] = [id_.incarnation, id_.step, id_.index, names.arrivals, group.note]
        async with self._redis.pipeline(transaction=False) as pipe:
            for policy, entry in entries:
                staged = names.staged(policy, attempt)
                pipe.set(staged, entry.data, ex=STAGED_SECONDS)
                keys += (staged, names.stream(policy), names.entries(policy, id_.step))
                args += (policy, len(entry.data), entry.meta, entry.status)
            pipe.evalsha(self._commit.sha, len(keys), *keys, *args)
            *staging, reply = await pipe.execute(raise_on_error=False)
        if isinstance(reply, NoScriptError):  # a server that was started again
            reply = await self._commit(keys, args)
        failures = [each for each in (*staging, reply) if isinstance(each, Exception)]
        for failure in failures:
            if not isinstance(failure, OutOfMemoryError) or failure is reply:
                raise failure
        outcome, *rest = reply
        if outcome == b"unstaged" and not failures:
            raise UnavailableError("the store lost a group's data on its way; send it again")
        if outcome == b"stored":
            lengths, given = rest[::2], rest[1::2]
            for (policy, entry), name in zip(entries, given, strict=True):
                if name:
                    self._fresh.put(policy, name.decode(), entry.data)
            rest = lengths
        return outcome.decode(), rest, sum(len(entry.data) for _, entry in entries)
