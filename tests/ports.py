"""Ports for servers that a test starts by number.

The kernel hands out those above to whoever connects or asks for any: between a look at such a one
and the start of a server, another test may have got it.
"""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
PORTS = range(10_000, 30_000)


def free_port() -> int:
    """One that nobody listens on."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Different ones."""
    tried = random.SystemRandom().sample(PORTS, len(PORTS))
    found = (port for port in tried if _is_free(port))
    return [next(found) for _ in range(count)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
