"""`flexmarl serve store` at a `redis://` URL: the Valkey that the jobs of a cluster share.

It listens on TCP and knows one user at first, the administrator that its URL names: who adds a user
per job (`acl.acl_rules`) and saves them (`ACL SAVE`). They lie beside the log, in its folder, so
that a server that was killed knows them again. This process becomes the server, as `embedded` does.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from redis.asyncio.connection import parse_url

from flexmarl.experience.connection import NO_URL
from flexmarl.experience.embedded import Directive, become, memory_bound
from flexmarl.runtime.errors import InvalidJobError
from flexmarl.runtime.main import misconfigured

USERS = "users.acl"


class SharedStoreSettings(BaseSettings):
    """Environment variables `FLEXMARL_STORE_<FIELD>`."""

    model_config = SettingsConfigDict(env_prefix="FLEXMARL_STORE_", frozen=True)

    url: str
    """`redis://USER:PASSWORD@ANY-HOST:PORT`: the administrator, and the port to listen on."""
    dir: Path = Path("/data")
    """Log and users."""
    max_memory_mib: Annotated[int, Field(ge=16)] = 1024
    fsync: Literal["always", "everysec", "no"] = "everysec"
    """When the log is forced to the disk: what a machine that goes down may lose."""


def users(administrator: str, password: str, known: str) -> str:
    """Content of the file of users: the administrator's, and of `known` everyone else's."""
    digest = hashlib.sha256(password.encode()).hexdigest()
    mine = ["user default off", f"user {administrator} on #{digest} ~* &* +@all"]
    prefixes = ("user default ", f"user {administrator} ")
    others = [line for line in known.splitlines() if line and not line.startswith(prefixes)]
    return "".join(f"{line}\n" for line in [*mine, *others])


def server_config(settings: SharedStoreSettings, port: int) -> list[Directive]:
    return [
        ("port", str(port)),
        ("aclfile", str(settings.dir / USERS)),
        ("dir", str(settings.dir)),
        ("save", ""),
        ("appendonly", "yes"),
        ("appendfsync", settings.fsync),
        *memory_bound(settings.max_memory_mib),
        ("tcp-keepalive", "60"),
        ("daemonize", "no"),
        ("loglevel", "notice"),
    ]


def administrator(url: str) -> tuple[str, str, int]:
    """Name, password and port; InvalidJobError when the URL lacks one."""
    try:
        parts: Mapping[str, object] = dict(parse_url(url))
    except ValueError:
        raise InvalidJobError(f"FLEXMARL_STORE_URL: {NO_URL}") from None
    user, password = str(parts.get("username") or ""), str(parts.get("password") or "")
    port = parts.get("port", 6379)
    if "path" in parts or not user or not password or not isinstance(port, int):
        raise InvalidJobError(
            "FLEXMARL_STORE_URL: a shared store wants redis://USER:PASSWORD@HOST:PORT"
        )
    if not user.isidentifier() or user == "default":
        raise InvalidJobError(f"FLEXMARL_STORE_URL: {user!r} cannot be the administrator's name")
    return user, password, port


def serve() -> None:
    """InvalidJobError: the environment says not how."""
    try:
        settings = SharedStoreSettings()
    except ValidationError as error:
        raise misconfigured(error, "FLEXMARL_STORE_") from None
    user, password, port = administrator(settings.url)
    path = settings.dir / USERS
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(users(user, password, path.read_text() if path.exists() else ""))
    new.replace(path)  # never half a file: it holds the users of all jobs
    become(server_config(settings, port))
