"""Where a process runs: read once from the environment in `main()`, then passed down.

What the user decides stands in the job file, not here. On one machine the supervisor sets these,
on a cluster the pod's manifest does.
"""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_settings import BaseSettings, SettingsConfigDict


class Discovery(BaseModel):
    """DNS names, with a port, whose addresses are the processes that are ready."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: str
    engines: dict[str, str]
    """By policy, of those with engines of their own."""
    pools: dict[str, str] = {}
    """By pool, of engines that policies share."""


def with_brackets(address: str) -> str:
    """`host:port` whose host may be a bare IPv6 address, as manifests put one together."""
    host, _, port = address.rpartition(":")
    return f"[{host}]:{port}" if ":" in host and not host.startswith(("[", "unix")) else address


class Settings(BaseSettings):
    """Environment variables `FLEXMARL_<FIELD>`; lists and maps as JSON."""

    model_config = SettingsConfigDict(env_prefix="FLEXMARL_", frozen=True)

    job_file: Path
    """The MARLJob as YAML; relative URIs in it count from `base_dir`."""
    base_dir: Path = Path()
    job_uid: str
    """Unique per submission; names keys in the store and tensor sets in shared memory."""
    token: str = ""
    """Shared secret of the job's processes; every gRPC call carries it. Empty: no check."""
    listen: str = "127.0.0.1:0"
    """gRPC address to serve on: host:port or unix:///path."""
    log_format: Literal["console", "json"] = "console"
    log_level: str = "INFO"
    metrics_port: Annotated[int, Field(ge=0, lt=65536)] = 0
    """Prometheus endpoint; 0: off."""
    drain_seconds: float = 10.0
    run_dir: Path = Path("runs/default")
    shm_dir: Path = Path("/dev/shm")

    policy: str = ""
    """Engine: the policy it serves."""
    pool: str = ""
    """Engine: the pool it belongs to, instead of a policy of its own."""
    store_url: Annotated[str, StringConstraints(strip_whitespace=True)] = ""
    """Out of a Secret, perhaps with a line end."""
    experience: str = ""
    """Address of the experience service."""
    weights: Annotated[str, AfterValidator(with_brackets)] = ""
    """Address of the weights sidecar of this pod."""
    workers: list[str] = []
    engines: dict[str, list[str]] = {}
    """Policy -> addresses of its own engines."""
    pools: dict[str, list[str]] = {}
    """Pool -> addresses of the engines that its policies share."""
    trainers: list[str] = []
    slot_policies: dict[str, list[str]] = {}
    """Address of a trainer -> the policies that it may train; those not named: any."""
    discovery: Discovery | None = None
    """On a cluster, instead of `workers`, `engines` and `pools`."""
    resume_from: str = ""
    """Checkpoint directory to start from, with a manifest."""


def secret(name: str) -> str | None:
    """The environment variable in which the user keeps a key that the job file only names."""
    return os.environ.get(name)


def variables(prefix: str) -> dict[str, str]:
    """The environment variables that begin so, without it."""
    found = {key: value for key, value in os.environ.items() if key.startswith(prefix)}
    return {key.removeprefix(prefix): value for key, value in found.items()}


class _Cache(BaseSettings):
    """The XDG base directory for what can be made again, and the job that reads it."""

    model_config = SettingsConfigDict(frozen=True)

    xdg_cache_home: Path = Path("~/.cache")
    flexmarl_job_uid: str = ""


def cache_dir() -> Path:
    """Where downloads and conversions are kept between jobs: $XDG_CACHE_HOME/flexmarl."""
    return _Cache().xdg_cache_home.expanduser() / "flexmarl"


def cache_reader() -> str:
    """The job of this process, whose pods read one version of each source; empty: none."""
    return _Cache().flexmarl_job_uid
