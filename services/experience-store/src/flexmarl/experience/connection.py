"""The connection to a Redis >= 7 or Valkey >= 8: bounded, checked, its errors made ours.

Not here: retries over an outage. They are the client's, which knows how long it can wait.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.exceptions as errors
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from flexmarl.experience import scripts
from flexmarl.experience.acl import missing_rules, questions
from flexmarl.experience.keys import Keys
from flexmarl.runtime.errors import FullError, InvalidJobError, UnavailableError

MAX_CONNECTIONS = 16
BUSY_SECONDS = 10.0
"""To get one of them."""
ANSWER_SECONDS = 20.0
"""For one answer of the server, however many commands it takes."""
READ_BYTES = 1 << 20
"""At once; the library's 64 KiB make hundreds of turns of the event loop of one answer."""
SOCKET_BYTES = 4 << 20
"""Under way in a unix socket, as far as the system allows: its own 200 KiB make as many turns."""
NO_URL = (
    "cannot be read; write redis://USER:PASSWORD@HOST:PORT, rediss:// or unix://, with %2F, %40, "
    "%3A, %23 and %3F for /, @, :, # and ? in a password"
)
LEAST = {"redis": 7, "valkey": 8}
_PASSING = ("MISCONF", "NOREPLICAS", "BUSY", "LOADING", "READONLY", "MASTERDOWN", "UNKILLABLE")
"""Replies of a server that will take the same command later."""


class NotAdmittedError(InvalidJobError):
    """The server refuses user or password. Whoever admits users may not have done it yet."""


@dataclass(frozen=True, slots=True)
class Server:
    """What groups lie in."""

    name: str
    """With its version."""
    max_memory: int
    """In bytes; 0: no bound."""


def connect(url: str, ca_file: Path | None = None) -> Redis:
    """A client of the server at `url`; InvalidJobError when it is no URL of one.

    `ca_file` (PEM) says whose certificates are trusted under `rediss://`; by default the system's.
    """
    tls: dict[str, Any] = {}
    if ca_file is not None:
        try:
            ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidJobError(f"store.caFile: {ca_file}: {error}") from error
        tls["ssl_ca_certs"] = str(ca_file)
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=BUSY_SECONDS,
            # Before Python 3.12 redis-py's own timeout loses cancellations (asyncio.wait_for
            # returns what is ready instead); `translated` bounds every call.
            socket_timeout=None,
            socket_connect_timeout=5,
            socket_read_size=READ_BYTES,
            retry=Retry(NoBackoff(), 1),  # a connection that the server closed meanwhile
            redis_connect_func=_begin,
            **tls,
        )
    except ValueError:  # its words may hold a part of the password
        raise InvalidJobError(f"store.url: {NO_URL}") from None
    return Redis.from_pool(pool)


async def _begin(connection: AbstractConnection) -> None:
    """What the library does of itself, on a socket that carries megabytes. TCP sees to its own."""
    end = connection._writer.get_extra_info("socket") if connection._writer else None
    if end is not None and end.family == socket.AF_UNIX:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    await connection.on_connect()


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


async def check_server(redis: Redis, tag: str) -> Server:
    """The server; InvalidJobError when groups would not be safe in it, or out of reach."""
    async with translated():
        try:
            await _check_rights(redis, tag)
            info: dict[str, Any] = await redis.info("server") | await redis.info("memory")
        except errors.NoPermissionError as error:
            raise InvalidJobError(f"store.url: its user lacks a right: {error}") from error
        except errors.ConnectionError as error:
            if why := _refusal(error):
                raise why from error
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
    return Server(f"{kind} {version}", int(info["maxmemory"]))


async def _check_rights(redis: Redis, tag: str) -> None:
    """The server itself says what its user lacks; nothing is written for it."""
    keys = Keys(tag)
    try:
        lacking = await redis.register_script(scripts.RIGHTS)(
            [], [f"{keys.prefix}rights", keys.arrivals, *questions()]
        )
    except errors.ResponseError as error:
        if "acl_check_cmd" in str(error) or "shebang" in str(error).lower():
            return  # older than 7: said by its version
        raise
    if lacking:
        rules = " ".join(missing_rules(tag, (name.decode() for name in lacking)))
        raise InvalidJobError(
            f"store.url: its user lacks rights; grant them with ACL SETUSER: {rules}"
        )


def _refusal(error: BaseException) -> InvalidJobError | None:
    """Why no later connection would fare better, where that is so."""
    for cause in _causes(error):  # redis-py wraps what goes wrong while it connects
        if isinstance(cause, errors.AuthenticationError):
            return NotAdmittedError(f"store.url: the server refuses its user or password: {cause}")
        if isinstance(cause, ssl.SSLCertVerificationError):
            return InvalidJobError(
                f"store.url: the server's certificate is not trusted ({cause.verify_message}); "
                "store.caFile names the authority that signed it"
            )
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            return InvalidJobError(f"store.url: no TLS with the server: {cause.reason or cause}")
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
