"""One URI into the cache, whatever its kind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flexmarl.fetch.errors import FetchError, Reason, of_os
from flexmarl.fetch.settings import FetchSettings
from flexmarl.fetch.sources import (
    GitSource,
    HubSource,
    Part,
    S3Source,
    fetched,
    folder_of,
    source_of,
)


@dataclass(frozen=True, slots=True)
class Fetched:
    uri: str
    folder: Path | None
    """None: nothing has to be fetched for this kind of URI."""
    bytes: int = 0
    """That this call has brought; 0 when all was there."""
    resumed: int = 0
    """Bytes of an earlier try that were of use."""
    seconds: float = 0.0


def fetch(
    uri: str,
    part: Part = Part.ALL,
    root: Path | None = None,
    given: Mapping[str, str] | None = None,
) -> Fetched:
    """Bring `uri` into the cache below `root` unless it is there; FetchError.

    `given`: addresses and keys that go before those of the environment, by the same names.
    """
    source = source_of(uri)
    if source is None:
        return Fetched(uri, None)
    there = fetched(uri, part, root)
    if there is not None:
        return Fetched(uri, there)
    folder, began = folder_of(uri, part, root), time.monotonic()
    given = given or {}
    settings = FetchSettings.of(given)
    brought = resumed = 0
    match source:
        case GitSource():
            from flexmarl.fetch.git import checkout

            checkout(source, folder, settings)
            brought = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        case HubSource():
            from flexmarl.fetch.download import download
            from flexmarl.fetch.hub import Hub

            with Hub(source, part, settings) as hub:
                transfer = download(hub, folder)
            brought, resumed = transfer.done - transfer.resumed, transfer.resumed
        case S3Source():
            from flexmarl.fetch.download import download
            from flexmarl.fetch.s3 import S3

            transfer = download(S3(source, part, given), folder)
            brought, resumed = transfer.done - transfer.resumed, transfer.resumed
    return Fetched(uri, folder, brought, resumed, time.monotonic() - began)


def copy_into(found: Fetched, into: Path) -> None:
    """The files of `found` also in `into`, which may be a mounted volume; FetchError."""
    if found.folder is None:
        says = "nothing is fetched for it, so nothing can be put anywhere"
        raise FetchError(found.uri, Reason.INVALID_URI, says)
    try:
        shutil.copytree(found.folder, into, dirs_exist_ok=True, symlinks=True)
    except shutil.Error as errors:
        first = OSError(None, str(errors.args[0][0][2]), str(into))
        raise of_os(first, found.uri, into) from errors
    except OSError as error:
        raise of_os(error, found.uri, into) from error
