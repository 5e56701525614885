"""The store that all jobs of the installation share: a user for each, and nothing after it."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from flexmarl.experience.acl import acl_rules
from flexmarl.experience.connection import connect
from flexmarl.experience.keys import job_tag

PREFIX = "flexmarl/"
PAGE = 1000


def user_of(namespace: str, name: str, uid: str) -> str:
    return PREFIX + job_tag(namespace, name, uid)


def url_for(url: str, user: str, password: str) -> str:
    """The store at `url` for another user."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{password}@{host}"))


def password_of(url: str) -> str:
    return urlsplit(url).password or ""


class JobUsers:
    """Users of jobs in the store at `url`. RedisError, OSError: it does not answer."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def admit(self, namespace: str, name: str, uid: str, password: str) -> None:
        """Make the job's user, or see to it that it is as it should be."""
        rules = acl_rules(job_tag(namespace, name, uid))
        async with connect(self._url) as client:
            user = user_of(namespace, name, uid)
            await _acl(client, "SETUSER", user, "reset", "on", f">{password}", *rules)
            await _save(client)

    async def users(self) -> set[str]:
        async with connect(self._url) as client:
            found = await _acl(client, "USERS")
        names = {os.fsdecode(name) if isinstance(name, bytes) else str(name) for name in found}
        return {name for name in names if name.startswith(PREFIX)}

    async def forget(self, users: Collection[str]) -> None:
        """Remove these users and all their keys."""
        tags = {user.removeprefix(PREFIX) for user in users}
        async with connect(self._url) as client:
            cursor = 0
            while True:
                cursor, keys = await client.scan(cursor, match="{*}:*", count=PAGE)
                ours = [key for key in keys if _tag(os.fsdecode(key)) in tags]
                if ours:
                    await client.unlink(*ours)
                if cursor == 0:
                    break
            for user in users:
                await _acl(client, "DELUSER", user)
            await _save(client)


async def _acl(client: Redis, *words: str) -> Any:
    return await client.execute_command("ACL", *words)  # type: ignore[no-untyped-call]


async def _save(client: Redis) -> None:
    """A server without a file of users forgets them when it restarts; then they are made anew."""
    try:
        await _acl(client, "SAVE")
    except ResponseError:
        return


def _tag(key: str) -> str:
    return key.partition("}:")[0].removeprefix("{")


__all__ = ["JobUsers", "RedisError", "password_of", "url_for", "user_of"]
