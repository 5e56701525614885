"""The files beside a job file as one ConfigMap, named by their content."""

from __future__ import annotations

import base64
import copy
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from flexmarl.cli.console import INVALID, CommandError, warn
from flexmarl.contracts.places import Place
from flexmarl.contracts.preparation import PACKED
from flexmarl.contracts.reading import BASE_DIR, JobFile
from flexmarl.controller.names import JOB_LABEL

MOST_BYTES = 900 << 10
"""The API server takes a ConfigMap of 1 MiB."""
LEFT_OUT = {"__pycache__", "runs", "node_modules"}

_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


@dataclass(frozen=True, slots=True)
class Packed:
    """A job as it goes to the cluster, and the ConfigMap that goes with it."""

    job: dict[str, Any]
    config_map: dict[str, Any] | None
    files: int = 0
    size: int = 0


def pack(file: JobFile, namespace: str) -> Packed:
    """CommandError: a file cannot be packed, or all together are too large."""
    job = copy.deepcopy(file.document)
    metadata = job["metadata"]
    metadata["namespace"] = namespace
    metadata.get("annotations", {}).pop(BASE_DIR, None)
    code = Place(job)["spec"]["code"]
    if code["configMap"].given:
        return Packed(job, None)  # the user has put everything there
    files = dict(_files(file.base_dir, Place(job)["spec"]))
    if not files:
        return Packed(job, None)
    entries, archived = _entries(files)
    digest = hashlib.sha256()
    for name in sorted(entries):
        digest.update(f"{name}\0{len(entries[name])}\0".encode() + entries[name])
    name = f"{file.job.metadata.name}-files-{digest.hexdigest()[:10]}"
    job["spec"]["code"] = {**code.mapping, "configMap": name}
    if archived:
        metadata.setdefault("annotations", {})[PACKED] = next(iter(entries))
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {JOB_LABEL: file.job.metadata.name},
        },
        "immutable": True,
        "binaryData": {
            key: base64.b64encode(value).decode() for key, value in sorted(entries.items())
        },
    }
    return Packed(job, config_map, len(files), sum(map(len, entries.values())))


def _entries(files: Mapping[str, bytes]) -> tuple[dict[str, bytes], bool]:
    """What the ConfigMap holds: the files, or an archive of them where they lie in folders."""
    from flexmarl.fetch.archive import ARCHIVE
    from flexmarl.fetch.archive import pack as archive

    if all(map(_KEY.fullmatch, files)) and sum(map(len, files.values())) <= MOST_BYTES:
        return dict(files), False
    packed = archive(files)
    if len(packed) > MOST_BYTES:
        largest = sorted(files, key=lambda name: -len(files[name]))[:3]
        named = ", ".join(f"{name} ({len(files[name]) >> 10} KiB)" for name in largest)
        raise CommandError(
            f"The files beside the job are {len(packed) >> 10} KiB packed, a ConfigMap takes "
            f"{MOST_BYTES >> 10} KiB; the largest: {named}. Name data by s3:// or pvc://, models "
            "by hf://, s3:// or pvc://, and put code into an image (spec.code.image)",
            INVALID,
        )
    return {ARCHIVE: packed}, True


def _files(base: Path, spec: Place) -> Iterator[tuple[str, bytes]]:
    """Every file that the job names relative to its folder, by its path there."""
    for uri in _data(spec):
        path = _relative(uri)
        if path is not None:
            yield _inside(base, path, uri), _read(base / path, uri)
    for policy in spec["policies"].items():
        for uri in (policy["model"]["uri"], policy["tokenizer"]):
            if _relative(uri) is not None:
                raise CommandError(
                    f"{uri}: {uri.value} is a folder of this machine; on a cluster a model comes "
                    "by hf://, s3:// or pvc://, or as file:///folder in the image",
                    INVALID,
                )
    certificates = spec["store"]["caFile"]
    if certificates.text() and not Path(str(certificates.value)).is_absolute():
        path = str(certificates.value)
        yield _inside(base, path, certificates), _read(base / path, certificates)
    code = spec["code"]
    if code.given and not code["image"].given and not code["git"].given:
        folder = code["path"].text() or "."
        for found in _below(base, base / _inside(base, folder, code["path"])):
            yield found.relative_to(base).as_posix(), _read(found, code["path"])


def _below(base: Path, folder: Path) -> Iterator[Path]:
    """Every file, through links to folders as well, as an import would find it."""
    root = base.resolve()
    for at, folders, files in os.walk(folder, followlinks=True):
        here = Path(at)
        above = {one.resolve() for one in (here, *here.parents) if one.is_relative_to(base)}
        leads = {name: (here / name).resolve() for name in folders if _wanted(name)}
        for name, place in leads.items():
            if not place.is_relative_to(root):
                warn(f"{here / name} leads out of the folder of the job file and is left out")
        folders[:] = sorted(
            name
            for name, place in leads.items()
            if place.is_relative_to(root) and place not in above
        )
        found = (here / name for name in sorted(files) if _wanted(name))
        yield from (file for file in found if file.is_file())


def _wanted(name: str) -> bool:
    return not name.startswith(".") and name not in LEFT_OUT


def _data(spec: Place) -> Iterator[Place]:
    yield spec["data"]["uri"]
    yield spec["eval"]["data"]["uri"]
    for policy in spec["policies"].items():
        yield policy["training"]["warmStart"]["data"]["uri"]


def _relative(uri: Place) -> str | None:
    """The path in a relative file:// URI; None for every other."""
    text = uri.text() or ""
    path = unquote(text.removeprefix("file://"))
    return path if text.startswith("file://") and not path.startswith("/") else None


def _inside(base: Path, path: str, field: Place) -> str:
    """`path` as pods will look for it below `base`; CommandError where it leads out."""
    root = base.resolve()
    if not (root / path).resolve().is_relative_to(root):
        raise CommandError(
            f"{field}: {path} lies outside the folder of the job file; move it there, or name it "
            "by s3:// or pvc://",
            INVALID,
        )
    plain = PurePosixPath(path)
    if ".." in plain.parts:  # through a folder that pods may not have
        raise CommandError(f"{field}: name {path} without ..", INVALID)
    return plain.as_posix()


def _read(path: Path, field: Place) -> bytes:
    if path.is_file() and path.stat().st_size > 64 * MOST_BYTES:  # no compression makes it fit
        raise CommandError(
            f"{field}: {path} has {path.stat().st_size >> 20} MiB, a ConfigMap takes "
            f"{MOST_BYTES >> 10} KiB; name it by s3:// or pvc://",
            INVALID,
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(f"{field}: {path}: {error.strerror}", INVALID) from None
