"""Whether a pod reaches whom its process will ask: as little of their protocols as tells.

Nobody has to be ready yet, for all pods of a job start together: a name must be known, and a
connection made or refused. What is dropped on the way is found.
"""

from __future__ import annotations

import re
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
LONGEST = 500
"""Bytes of an answer that are read."""
_HOST = re.compile(r"[\w.-]+|[0-9a-f:.]+(%\w+)?", re.ASCII)
_DATABASE = re.compile(r"(/\d*)?", re.ASCII)


def experience(address: str, patience: float = SECONDS) -> Iterator[Found]:
    host, _, port = address.rpartition(":")

    def ask() -> str | None:
        try:
            with socket.create_connection((host, int(port)), timeout=ONE_SECONDS):
                return None
        except (socket.gaierror, TimeoutError, UnicodeError) as error:
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
    """`url` as of Redis, out of a Secret: nothing of it but host and port is ever said."""
    if url.startswith("unix:"):
        return  # of a store in the pod, which starts along with the process
    parts = _parts(url)
    if parts is None:
        says = (
            "the URL of the store cannot be read; write redis://USER:PASSWORD@HOST:PORT or "
            "rediss://..., with %2F, %40, %3A, %23 and %3F for /, @, :, # and ? in a password"
        )
        yield Found(reason="StoreURLInvalid", message=says, kind=Kind.HOPELESS)
        return
    where = f"{parts.hostname}:{parts.port or PORT}"
    denied = False

    def ask() -> str | None:
        nonlocal denied
        try:
            said = _ping(parts, ca_file)
        except (OSError, UnicodeError) as error:  # names that are too long are no OSError
            denied = False
            return str(error)
        denied = said.startswith(("-WRONGPASS", "-NOAUTH", "-ERR"))
        if not said.startswith(("+", "-")):
            return "what listens there does not speak as Redis does"
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


def _parts(url: str) -> SplitResult | None:
    """None: it is none. A password with a slash in it would make its head the name of a host, so
    that a host and a port are all there may be before the number of a database."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    good = (
        parts.scheme in ("redis", "rediss")
        and parts.hostname
        and _HOST.fullmatch(parts.hostname)
        and (port is None or port)
        and _DATABASE.fullmatch(parts.path)
        and not parts.fragment
        and "@" not in parts.path + parts.query
    )
    return parts if good else None


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
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if password:
        commands.insert(0, ("AUTH", *([user] if user else []), password))
    with connection.makefile("rwb") as stream:
        said = ""
        for command in commands:
            stream.write(b"*%d\r\n" % len(command))
            for word in command:
                raw = word.encode("utf-8", "surrogateescape")
                stream.write(b"$%d\r\n%b\r\n" % (len(raw), raw))
            stream.flush()
            said = stream.readline(LONGEST).decode(errors="replace").strip()
            if not said:
                raise ConnectionResetError("it closes the connection")
            if not said.startswith("+"):
                break
        code, blank, rest = said.partition(" ")
        if password:  # who does not know the command repeats it
            rest = rest.replace(password, "***")
        return f"{code}{blank}{rest}"
