"""Addresses and keys of what is fetched from, under the names that everybody else gives them.

On a cluster they come from the Secrets that a job names, and have been through editors, `echo` and
base64 before: blanks around them are dropped, what cannot be what its name says is refused before a
client sees it. What a refusal says holds nothing of the value: it ends in the job's status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

from pydantic import SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from flexmarl.fetch.errors import FetchError, Reason

_ADDRESS = re.compile(
    r"https?://(?P<user>[^/@]*@)?([\w.-]+|\[[0-9a-f:.]+\])(:(?P<port>\d{1,5}))?"
    r"(/[\w.~%!$&'()*+,;=:@/-]*)?",
    re.ASCII | re.IGNORECASE,
)
_KEY = re.compile(r"[!-~]+")


class FetchSettings(BaseSettings):
    model_config = SettingsConfigDict(frozen=True, env_ignore_empty=True)

    hf_endpoint: str = "https://huggingface.co"
    hf_token: SecretStr | None = None
    git_username: str = ""
    git_password: SecretStr | None = None
    """A token, too: most servers then take any user name."""

    @field_validator("*", mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return value.strip() if isinstance(value, str) else value

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Those of `given`, the entries of a Secret, before those of the environment. Secrets of
        the type kubernetes.io/basic-auth say username and password."""
        names = {"USERNAME": "GIT_USERNAME", "PASSWORD": "GIT_PASSWORD"}
        known = {names.get(name, name): value for name, value in cleaned(given).items()}
        found: dict[str, Any] = {
            name: known[name.upper()] for name in cls.model_fields if name.upper() in known
        }
        return cls(**found)


def cleaned(given: Mapping[str, str]) -> dict[str, str]:
    """By names in upper case, without blanks around the values; the empty ones are none."""
    bare = {name.upper(): value.strip() for name, value in given.items()}
    return {name: value for name, value in bare.items() if value}


def address(uri: str, name: str, value: str) -> str:
    """`value` if a server can be there, without a slash at its end; FetchError."""
    found = _ADDRESS.fullmatch(value)
    if found is None or not 0 < int(found["port"] or 443) < 1 << 16:
        says = f"{name} is not the address of a server; write https://HOST or http://HOST:PORT"
        raise FetchError(uri, Reason.INVALID_SETTING, says)
    if found["user"] is not None:
        says = f"a password has no place in {name}; keys have variables of their own"
        raise FetchError(uri, Reason.INVALID_SETTING, says)
    return value.rstrip("/")


def key(uri: str, name: str, value: str) -> str:
    """`value` if it can be a key or a token; FetchError."""
    if not _KEY.fullmatch(value):
        says = f"{name} holds characters that no key has, such as line ends; write it anew"
        raise FetchError(uri, Reason.DENIED, says)
    return value
