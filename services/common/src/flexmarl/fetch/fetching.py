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
    fetched,
    folder_of,
    read_by,
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
    unchecked: str = ""
    """Why nobody could be asked whether what was there is the newest."""


def fetch(
    uri: str,
    part: Part = Part.ALL,
    root: Path | None = None,
    given: Mapping[str, str] | None = None,
    *,
    reader: str | None = None,
) -> Fetched:
    """Bring `uri` into the cache below `root` unless it is there; FetchError.

    `given`: addresses and keys that go before those of the environment, by the same names.
    `reader` None: what is there will do, and is not asked for. Else the server is asked what it has
    now, unless that cannot change, or this reader (a job; empty: none) has been told before.
    """
    source = source_of(uri)
    if source is None:
        return Fetched(uri, None)
    final = reader is None or isinstance(source, GitSource) or source.final
    there = fetched(uri, part, root) if final else read_by(reader or "", uri, part, root)
    if there is not None:
        return Fetched(uri, there)
    base, began = folder_of(uri, part, root), time.monotonic()
    given = given or {}
    if isinstance(source, GitSource):
        from flexmarl.fetch.git import checkout

        checkout(source, base, FetchSettings.of(given))
        brought = sum(path.stat().st_size for path in base.rglob("*") if path.is_file())
        return Fetched(uri, base, brought, seconds=time.monotonic() - began)
    from flexmarl.fetch.download import download

    if isinstance(source, HubSource):
        from flexmarl.fetch.hub import Hub

        with Hub(source, part, FetchSettings.of(given)) as hub:
            folder, transfer = download(hub, base, reader or "")
    else:
        from flexmarl.fetch.s3 import S3

        folder, transfer = download(S3(source, part, given), base, reader or "")
    return Fetched(
        uri,
        folder,
        transfer.done - transfer.resumed,
        transfer.resumed,
        time.monotonic() - began,
        transfer.unchecked,
    )


def copy_into(found: Fetched, into: Path) -> None:
    """The files of `found` also in `into`, which may be a mounted volume; FetchError."""
    if found.folder is None:
        says = "nothing is fetched for it, so nothing can be put anywhere"
        raise FetchError(found.uri, Reason.INVALID_URI, says)
    try:
        _put(found.folder, into)
    except OSError as error:
        raise of_os(error, found.uri, into) from error


def _put(folder: Path, into: Path) -> None:
    """What shutil.copytree does, but `into` keeps its rights and times, which a volume's root lets
    only its owner change; and links may be there already, from an earlier start of a container."""
    into.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        target = into / path.name
        if path.is_symlink():
            target.unlink(missing_ok=True)
            target.symlink_to(path.readlink())
        elif path.is_dir():
            _put(path, target)
        else:
            shutil.copy(path, target)
