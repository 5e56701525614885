"""Files and directories that are whole or not there, over crashes and power cuts."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
"""Network file systems cannot exchange two names."""

LEFT_SECONDS = 60
"""Older than that, a file that is being written was left."""


def sync(path: Path) -> None:
    """Make the file, or the names in the directory, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, text: str, *, durable: bool = True) -> None:
    """Write `path` so that a reader, and a crash at any moment, sees the old text or the new.

    Several may write it at the same time: the last one's stays, and each has written its own whole.
    `durable`: it survives a power cut, once this has returned.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def sweep(path: Path) -> None:
    """Remove what writers of `path` that were killed have left beside it."""
    for partial in path.parent.glob(f".{path.name}.*.partial"):
        with suppress(FileNotFoundError):  # its writer is done
            if time.time() - partial.stat().st_mtime > LEFT_SECONDS:
                partial.unlink()


def put_in_place(made: Path, place: Path) -> None:
    """Give the directory `made` the name `place`; what lay there goes.

    Both are on one file system. Whatever ends this process in between, there is one whole
    directory at `place`, at the latest after `mend`.
    """
    if not place.exists():
        made.rename(place)
    elif _exchange(made, place):
        shutil.rmtree(made)
    else:
        aside = _aside(place)
        shutil.rmtree(aside, ignore_errors=True)
        place.rename(aside)
        made.rename(place)
        shutil.rmtree(aside)
    sync(place.parent)


def mend(place: Path) -> None:
    """End what a `put_in_place` that was cut off had begun; to be called before reading."""
    aside = _aside(place)
    if not aside.exists():
        return
    if place.exists():
        shutil.rmtree(aside)
    else:
        aside.rename(place)


def places_to_mend(folder: Path) -> list[Path]:
    """Of directories in `folder`, those that `mend` has something to do for."""
    return [
        folder / path.name.removeprefix(".").removesuffix(".old") for path in folder.glob(".*.old")
    ]


def _aside(place: Path) -> Path:
    return place.with_name(f".{place.name}.old")


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names at once; False: the file system or the C library cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    if (error := ctypes.get_errno()) in _UNSUPPORTED:
        return False
    raise OSError(error, os.strerror(error), str(one), None, str(other))
