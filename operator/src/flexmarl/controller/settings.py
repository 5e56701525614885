"""Where the controller runs and what it deploys: read once from the environment."""

from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from flexmarl.contracts.cluster import CONTROLLER
from flexmarl.controller.render.parts import Installation
from flexmarl.controller.store import checked


class ControllerSettings(BaseSettings):
    """Environment variables `FLEXMARL_<FIELD>`; lists and maps as JSON."""

    model_config = SettingsConfigDict(env_prefix="FLEXMARL_", frozen=True)

    namespaces: list[str] = []
    """Those whose jobs are served; none: all."""
    managed_by: str = CONTROLLER
    """Only jobs whose `managedBy` is this are served."""
    namespace: str = ""
    """Its own, for policies that admit it to the jobs' pods; empty: it runs outside."""
    installation_uid: str = ""
    """Tells its users in a shared store from those of other installations. Empty: read from the
    cluster, the uid of its namespace (outside: of `default`)."""
    images: dict[str, str]
    """slim, trainer and vllm -> what pods name."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    image_pull_secrets: list[str] = []
    store_url: str = ""
    """Of the store for all jobs, its user may make users; empty: each job brings its own."""
    network_policies: bool = True
    metrics_from: list[dict[str, Any]] = []
    """NetworkPolicy peers that may read metrics."""
    metrics_port: int = Field(0, ge=0, lt=65536)
    health_port: int = Field(0, ge=0, lt=65536)
    log_format: Literal["console", "json"] = "console"
    log_level: str = "INFO"
    resync_seconds: float = 45
    progress_seconds: float = 2
    workers: int = 2
    """Jobs that are looked at at once, each with some requests at a time."""

    @field_validator("store_url")
    @classmethod
    def _names_a_store(cls, url: str) -> str:
        return checked(url) if url else url

    def installation(self) -> Installation:
        return Installation(
            images=self.images,
            pull_policy=self.image_pull_policy,
            pull_secrets=tuple(self.image_pull_secrets),
            network_policies=self.network_policies,
            metrics_from=tuple(self.metrics_from),
            namespace=self.namespace,
        )
