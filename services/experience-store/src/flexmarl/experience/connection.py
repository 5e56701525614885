"""The connection to a Redis >= 7 or Valkey >= 8: bounded, checked, its errors made ours.

Not here: retries over an outage. They are the client's, which knows how long it can wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import redis.exceptions as errors
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from flexmarl.runtime.errors import FullError, InvalidJobError, UnavailableError

MAX_CONNECTIONS = 16
BUSY_SECONDS = 10.0
"""To get one of them."""
ANSWER_SECONDS = 20.0
"""For one answer of the server, however many commands it takes."""
LEAST = {"redis": 7, "valkey": 8}
_PASSING = ("MISCONF", "NOREPLICAS", "BUSY", "LOADING", "READONLY", "MASTERDOWN", "UNKILLABLE")
"""Replies of a server that will take the same command later."""


def connect(url: str) -> Redis:
    """A client of the server at `url`; InvalidJobError when it is no URL of one."""
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=BUSY_SECONDS,
            # Before Python 3.12 redis-py's own timeout loses cancellations (asyncio.wait_for
            # returns what is ready instead); `translated` bounds every call.
            socket_timeout=None,
            socket_connect_timeout=5,
            retry=Retry(NoBackoff(), 1),  # a connection that the server closed meanwhile
        )
    except ValueError as error:
        raise InvalidJobError(f"store.url: {error}") from error
    return Redis.from_pool(pool)


@asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """Server errors that a caller may act on become ours; the rest are bugs.

    What takes longer than `ANSWER_SECONDS` is UnavailableError, too.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            yield
    except errors.OutOfMemoryError as error:
        raise FullError(f"the store is out of memory: {error}") from error
    except (errors.ConnectionError, errors.TimeoutError, OSError) as error:
        text = str(error) or type(error).__name__
        raise UnavailableError(f"the store does not answer: {text}") from error
    except errors.ReadOnlyError as error:
        raise UnavailableError(f"the store is read-only: {error}") from error
    except errors.ResponseError as error:
        if str(error).startswith(_PASSING):
            raise UnavailableError(f"the store cannot take this now: {error}") from error
        raise


async def check_server(redis: Redis) -> str:
    """Name and version of the server; InvalidJobError when groups would not be safe in it."""
    async with translated():
        try:
            info: dict[str, Any] = await redis.info("server") | await redis.info("memory")
        except errors.NoPermissionError as error:
            raise InvalidJobError(f"store.url: this user may not run INFO: {error}") from error
        except errors.ConnectionError as error:
            # redis-py wraps what goes wrong while it connects
            if isinstance(error.__cause__ or error, errors.AuthenticationError):
                raise InvalidJobError(
                    f"store.url: the server refuses its user or password: {error}"
                ) from error
            raise
    kind = "valkey" if "valkey_version" in info else "redis"
    version = str(info[f"{kind}_version"])
    if int(version.split(".", maxsplit=1)[0]) < LEAST[kind]:
        raise InvalidJobError(
            f"store.url: the server is {kind} {version}; Redis >= 7 or Valkey >= 8 is needed"
        )
    if info.get("redis_mode", info.get("server_mode")) == "cluster":
        raise InvalidJobError("store.url: the server is a cluster; name a single server")
    policy = info.get("maxmemory_policy")
    if policy != "noeviction":
        raise InvalidJobError(
            f"store.url: the server's maxmemory-policy is {policy!r}; it must be 'noeviction', "
            "any other one throws groups away when memory runs out"
        )
    return f"{kind} {version}"
