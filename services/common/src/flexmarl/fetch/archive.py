"""A folder in one file and back: how files beside a job reach its pods inside a ConfigMap.

Equal files make equal bytes, whenever and wherever they are packed.
"""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from flexmarl.fetch.errors import FetchError, Reason, of_os

ARCHIVE = "files.tar.gz"
"""The entry of a ConfigMap that holds a folder."""


def pack(files: Mapping[str, bytes]) -> bytes:
    """An archive of `files`, by their paths."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0, filename="") as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(files):
            entry = tarfile.TarInfo(path)
            entry.size = len(files[path])
            tar.addfile(entry, io.BytesIO(files[path]))
    return packed.getvalue()


def unpack(archive: Path, folder: Path) -> int:
    """Put the files of `archive` into `folder`; how many. Nothing leaves the folder. FetchError."""
    uri = f"file://{archive}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, mode="r:gz") as tar:
            members = tar.getmembers()
            for member in members:
                put(tar, member, folder)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        says = f"is no archive that `flexmarl apply` makes: {error}; apply the job again"
        raise FetchError(uri, Reason.DAMAGED, says) from error
    except FileNotFoundError as error:
        says = "is not there; the ConfigMap must be mounted"
        raise FetchError(uri, Reason.NOT_FOUND, says) from error
    except OSError as error:
        raise of_os(error, uri, folder) from error
    return len(members)


def put(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """One file, as `pack` knows them: extractall refuses what leads out of the folder only in
    Pythons newer than the oldest that we run on."""
    path = PurePosixPath(member.name)
    stream = tar.extractfile(member) if member.isreg() else None
    if stream is None or path.is_absolute() or ".." in path.parts:
        raise tarfile.TarError(f"{member.name!r} is no plain file in a folder")
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        shutil.copyfileobj(stream, out)
