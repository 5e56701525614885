"""Why something could not be fetched, in words and by a reason that a controller can act on."""

from __future__ import annotations

import errno
from enum import StrEnum
from pathlib import Path

from flexmarl.runtime.errors import FlexMARLError


class Reason(StrEnum):
    """The reason of the condition ModelsFetched."""

    INVALID_URI = "InvalidURI"
    INVALID_SETTING = "InvalidSetting"
    """Of an address, a key or a switch in the environment."""
    NOT_FOUND = "SourceNotFound"
    DENIED = "AccessDenied"
    DAMAGED = "SourceDamaged"
    UNREACHABLE = "SourceUnreachable"
    DISK_FULL = "DiskFull"
    NO_CACHE = "CacheUnusable"


HOPELESS = frozenset(
    {
        Reason.INVALID_URI,
        Reason.INVALID_SETTING,
        Reason.NOT_FOUND,
        Reason.DENIED,
        Reason.DAMAGED,
    }
)
"""Trying again as it is cannot mend these."""


class FetchError(FlexMARLError):
    """`uri` could not be fetched; the text names it, says why and what to do."""

    def __init__(self, uri: str, reason: Reason, says: str) -> None:
        super().__init__(f"{uri}: {says}")
        self.uri, self.reason = uri, reason

    @property
    def hopeless(self) -> bool:
        return self.reason in HOPELESS


class InterruptedReadError(Exception):
    """A transfer broke off and may be taken up again where it stopped."""


def of_os(error: OSError, uri: str, folder: Path) -> FetchError:
    """What the file system said when something was to be written to `folder`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        says = f"the disk of {folder} is full; give the cache a larger volume or empty it"
        return FetchError(uri, Reason.DISK_FULL, says)
    says = f"{error.filename or folder}: {error.strerror}; the cache must be a writable folder"
    return FetchError(uri, Reason.NO_CACHE, says)
