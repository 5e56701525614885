"""Addresses and keys of what is fetched from, under the names that everybody else gives them.

On a cluster they come from the Secrets that a job names. `AWS_*` is read by the S3 client itself.
"""

from __future__ import annotations

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class FetchSettings(BaseSettings):
    model_config = SettingsConfigDict(frozen=True)

    hf_endpoint: str = "https://huggingface.co"
    hf_token: SecretStr | None = None
    git_username: str = ""
    git_password: SecretStr | None = None
    """A token, too: most servers then take any user name."""
