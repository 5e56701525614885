"""The store that all jobs of the installation share: a user for each, and nothing after it.

Other installations may use the same server: only what this one made is ever removed.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from flexmarl.experience.acl import acl_rules
from flexmarl.experience.connection import connect
from flexmarl.experience.keys import job_tag
from flexmarl.runtime.errors import InvalidJobError, UnavailableError

PREFIX = "flexmarl/"
PAGE = 1000
ANSWER_SECONDS = 5.0
"""For one answer, and for the connection before the first."""
PAUSE_SECONDS = 10.0
"""Without an answer nobody asks for so long: looks at other jobs would wait as well, each anew."""


def user_of(installation: str, namespace: str, name: str, uid: str) -> str:
    """The job's user; `installation` is unlike that of every other one, on other clusters, too."""
    return _prefix(installation) + job_tag(namespace, name, uid)


def sweepable(users: Iterable[str], installation: str, namespaces: Collection[str]) -> set[str]:
    """Those that this installation made and whose job it would see if there were one; no
    `namespaces`: everywhere."""
    prefix = _prefix(installation)
    mine = {user for user in users if user.startswith(prefix)}
    if not namespaces:
        return mine
    return {user for user in mine if user.removeprefix(prefix).partition("/")[0] in namespaces}


def url_for(url: str, user: str, password: str) -> str:
    """The store at `url` for another user."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{password}@{host}"))


def checked(url: str) -> str:
    """The same; ValueError when it is no URL of a store."""
    try:
        connect(url)
    except InvalidJobError as error:
        raise ValueError(str(error).removeprefix("store.url: ")) from error
    return url


class JobUsers:
    """Users of jobs in the store at `url`. UnavailableError: it does not answer, or refuses."""

    def __init__(self, url: str, installation: str, namespaces: Collection[str] = ()) -> None:
        self._url, self._installation, self._namespaces = url, installation, namespaces
        self._away: tuple[float, str] = 0.0, ""
        """Until when it is not asked, and why."""

    def user(self, namespace: str, name: str, uid: str) -> str:
        return user_of(self._installation, namespace, name, uid)

    async def admit(self, namespace: str, name: str, uid: str, password: str) -> None:
        """Make the job's user, or see to it that it is as it should be."""
        rules = acl_rules(job_tag(namespace, name, uid))
        async with self._client() as client:
            user = self.user(namespace, name, uid)
            await _acl(client, "SETUSER", user, "reset", "on", f">{password}", *rules)
            await _save(client)

    async def users(self) -> set[str]:
        """Of jobs that this installation serves, or served."""
        async with self._client() as client:
            found = await _acl(client, "USERS")
        names = {os.fsdecode(name) if isinstance(name, bytes) else str(name) for name in found}
        return sweepable(names, self._installation, self._namespaces)

    async def forget(self, users: Collection[str]) -> None:
        """Remove these users and all their keys."""
        prefix = _prefix(self._installation)
        tags = {user.removeprefix(prefix) for user in users}
        async with self._client() as client:
            cursor = 0
            while True:
                async with asyncio.timeout(ANSWER_SECONDS):
                    cursor, keys = await client.scan(cursor, match="{*}:*", count=PAGE)
                ours = [key for key in keys if _tag(os.fsdecode(key)) in tags]
                if ours:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await client.unlink(*ours)
                if cursor == 0:
                    break
            for user in users:
                await _acl(client, "DELUSER", user)
            await _save(client)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Redis]:
        until, why = self._away
        if time.monotonic() < until:
            raise UnavailableError(why)
        try:
            async with connect(self._url) as client:
                yield client
        except (RedisError, OSError) as error:
            silent = isinstance(error, TimeoutError) and not str(error)
            said = without_password(str(error))
            why = f"no answer within {ANSWER_SECONDS:g} s" if silent else said
            self._away = time.monotonic() + PAUSE_SECONDS, why
            raise UnavailableError(why) from error


def without_password(said: str) -> str:
    """A server repeats what it was told: of a command that it does not know, each argument."""
    return re.sub(r">[^\s']+", ">***", said)


async def _acl(client: Redis, *words: str) -> Any:
    async with asyncio.timeout(ANSWER_SECONDS):
        return await client.execute_command("ACL", *words)


async def _save(client: Redis) -> None:
    """A server without a file of users forgets them when it restarts; then they are made anew."""
    try:
        await _acl(client, "SAVE")
    except ResponseError:
        return


def _prefix(installation: str) -> str:
    return f"{PREFIX}{installation}/"


def _tag(key: str) -> str:
    return key.partition("}:")[0].removeprefix("{")
