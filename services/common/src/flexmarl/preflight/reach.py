"""Whether a pod reaches whom its process will ask: as little of their protocols as tells.

Nobody has to be ready yet, for all pods of a job start together: a name must be known, and a
connection made or refused. What is dropped on the way is found.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from urllib.parse import SplitResult, unquote, urlsplit

from flexmarl.contracts.preparation import Found, Kind

SECONDS = 20.0
"""So long it is tried: names and routes of new pods take a moment."""
ONE_SECONDS = 4.0
AGAIN_SECONDS = 0.3
PORT = 6379


def experience(address: str, patience: float = SECONDS) -> Iterator[Found]:
    host, _, port = address.rpartition(":")

    def ask() -> str | None:
        try:
            with socket.create_connection((host, int(port)), timeout=ONE_SECONDS):
                return None
        except (socket.gaierror, TimeoutError) as error:
            return str(error)
        except OSError:
            return None  # refused, as long as nobody is ready; how depends on the cluster

    if trouble := _patiently(ask, patience):
        says = (
            f"{address} cannot be reached from this pod: {trouble}; see that the cluster's DNS "
            "works, and that its network policies let the pods of a job talk to each other"
        )
        yield Found(reason="ExperienceUnreachable", message=says, kind=Kind.PASSING)


def store(url: str, ca_file: str = "", patience: float = SECONDS) -> Iterator[Found]:
    """`url` as of Redis; what is said of it has no password in it."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        return
    where = f"{parts.hostname}:{parts.port or PORT}"
    denied = False

    def ask() -> str | None:
        nonlocal denied
        try:
            said = _ping(parts, ca_file)
        except OSError as error:
            denied = False
            return str(error)
        denied = said.startswith(("-WRONGPASS", "-NOAUTH", "-ERR"))
        return said[1:] if denied or said.startswith("-LOADING") else None

    trouble = _patiently(ask, patience)
    if trouble and denied:
        says = f"the store at {where} does not let the job in: {trouble}; mend user and password"
        yield Found(reason="StoreDenied", message=says, kind=Kind.PASSING)
    elif trouble:
        says = (
            f"the store at {where} cannot be reached: {trouble}; see that it runs and that "
            "network policies let this pod reach it"
        )
        yield Found(reason="StoreUnreachable", message=says, kind=Kind.PASSING)


def _patiently(ask: Callable[[], str | None], patience: float) -> str | None:
    """What still troubled after so many seconds; None: it went."""
    end = time.monotonic() + patience
    while (trouble := ask()) and time.monotonic() < end:
        time.sleep(AGAIN_SECONDS)
    return trouble


def _ping(parts: SplitResult, ca_file: str) -> str:
    """The first line of the answer that matters. OSError."""
    address = (str(parts.hostname), parts.port or PORT)
    with socket.create_connection(address, timeout=ONE_SECONDS) as plain:
        if parts.scheme == "redis":
            return _ask(plain, parts)
        context = ssl.create_default_context(cafile=ca_file or None)
        with context.wrap_socket(plain, server_hostname=parts.hostname) as encrypted:
            return _ask(encrypted, parts)


def _ask(connection: socket.socket, parts: SplitResult) -> str:
    commands: list[tuple[str, ...]] = [("PING",)]
    if parts.password:
        login = (unquote(parts.username or ""), unquote(parts.password))
        commands.insert(0, ("AUTH", *(word for word in login if word)))
    with connection.makefile("rwb") as stream:
        said = ""
        for command in commands:
            stream.write(b"*%d\r\n" % len(command))
            for word in command:
                raw = word.encode()
                stream.write(b"$%d\r\n%b\r\n" % (len(raw), raw))
            stream.flush()
            said = stream.readline().decode(errors="replace").strip()
            if not said:
                raise ConnectionResetError("it closes the connection")
            if said.startswith("-"):
                break
        return said
