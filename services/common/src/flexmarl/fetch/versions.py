"""Which version of a source the cache holds, and who reads which.

What a URI names may change on its server. Each version that was fetched has a folder of its own,
`NAME-DIGEST`. In the folder `NAME.read` lies a file per reader, which names the one that it reads:
a job keeps to what its first pod has found, whatever is uploaded while it runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from flexmarl.fetch.remote import RemoteFile

NEWEST = "newest"
"""The reader that follows every change."""
_READER = re.compile(r"[\w.-]{1,200}", re.ASCII)


def folder_for(base: Path, files: Sequence[RemoteFile]) -> Path:
    """Where this version of what belongs to `base` lies; equal files, equal folder."""
    known = sorted((file.path, file.size, file.version) for file in files)
    digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()
    return base.with_name(f"{base.name}-{digest[:16]}")


def chosen(base: Path, reader: str) -> Path | None:
    """The folder that `reader` reads, if it is there."""
    if not _READER.fullmatch(reader):  # a job outside of a cluster has none
        return None
    try:
        name = (_readers(base) / reader).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    folder = base.with_name(name) if name.startswith(base.name) else None
    return folder if folder is not None and folder.is_dir() else None


def choose(base: Path, reader: str, folder: Path) -> None:
    """From now on `reader` reads `folder`. OSError."""
    readers = _readers(base)
    readers.mkdir(exist_ok=True)
    scratch = readers / f".{reader}.new"
    with scratch.open("w", encoding="ascii") as file:
        file.write(f"{folder.name}\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(readers / reader)


def _readers(base: Path) -> Path:
    return base.with_name(f"{base.name}.read")
