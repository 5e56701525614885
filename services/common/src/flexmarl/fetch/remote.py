"""What every kind of server is to the download: a list of files, read from any offset."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Digest:
    """What the bytes of a file must hash to."""

    algorithm: str
    """`sha256`, `md5`, or `git` (SHA-1 over git's header and the bytes)."""
    value: str
    sure: bool = True
    """False: servers are known to say something else here (S3 with encryption keys of its own), so
    that two transfers which agree are right, too."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    path: str
    """Below the folder that is made."""
    size: int
    version: str
    """Changes with the bytes: a part of another version is not gone on with."""
    digest: Digest | None = None


class Remote(Protocol):
    uri: str

    def files(self) -> Sequence[RemoteFile]:
        """All that is wanted. FetchError, InterruptedReadError (try again)."""
        ...

    def read(self, file: RemoteFile, offset: int) -> Generator[bytes, None, None]:
        """The bytes from `offset` on. InterruptedReadError: go on later; FetchError: don't."""
        ...
