"""Addresses and keys of what is fetched from, under the names that everybody else gives them.

On a cluster they come from the Secrets that a job names. `AWS_*` is read by the S3 client itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class FetchSettings(BaseSettings):
    model_config = SettingsConfigDict(frozen=True)

    hf_endpoint: str = "https://huggingface.co"
    hf_token: SecretStr | None = None
    git_username: str = ""
    git_password: SecretStr | None = None
    """A token, too: most servers then take any user name."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Those of `given`, the entries of a Secret, before those of the environment. Secrets of
        the type kubernetes.io/basic-auth say username and password."""
        names = {"USERNAME": "GIT_USERNAME", "PASSWORD": "GIT_PASSWORD"}
        upper = {names.get(key.upper(), key.upper()): value for key, value in given.items()}
        found: dict[str, Any] = {
            name: upper[name.upper()] for name in cls.model_fields if name.upper() in upper
        }
        return cls(**found)
