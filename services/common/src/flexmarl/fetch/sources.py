"""URIs of what is fetched: how they are written, and which folder of the cache holds each."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path

from flexmarl.fetch.errors import FetchError, Reason
from flexmarl.fetch.versions import NEWEST, chosen
from flexmarl.runtime.settings import cache_dir, cache_reader


class Part(StrEnum):
    """Which files of a source are wanted."""

    MODEL = "model"
    """Weights, configuration and tokenizer in Hugging Face's layout."""
    TOKENIZER = "tokenizer"
    ALL = "all"


_TOKENIZER = ("*.json", "*.jinja", "*.txt", "tokenizer.model")
PATTERNS = {
    Part.TOKENIZER: _TOKENIZER,
    Part.MODEL: (*_TOKENIZER, "*.safetensors"),
    Part.ALL: ("*",),
}
_WIDER = {
    Part.TOKENIZER: (Part.TOKENIZER, Part.MODEL, Part.ALL),
    Part.MODEL: (Part.MODEL, Part.ALL),
}
CLAIMS = Path("/claims")
"""Where a pod has the volumes that `pvc://claim/path` names, each under its claim's name."""
NOT_FETCHED = ("random", "gym", "bytes", "file", "pvc", "pypi")
"""Made on the spot, in the image, or mounted."""

_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HOST = re.compile(r"([\w.-]+|\[[0-9a-f:.]+\])(:(?P<port>\d{1,5}))?", re.ASCII | re.IGNORECASE)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class HubSource:
    """`hf://org/name@revision`; `hf://datasets/org/name@revision` is a data set."""

    uri: str
    kind: str
    """`models` or `datasets`, as the hub's API says."""
    name: str
    revision: str

    @property
    def final(self) -> bool:
        """What it names is the same for ever."""
        return _COMMIT.fullmatch(self.revision) is not None


@dataclass(frozen=True, slots=True)
class S3Source:
    """`s3://bucket/prefix`: every object below the prefix, or the one object of that name."""

    uri: str
    bucket: str
    prefix: str
    final = False


@dataclass(frozen=True, slots=True)
class GitSource:
    """`git+https://host/repository@ref`: a branch, a tag or a whole commit hash."""

    uri: str
    url: str
    ref: str
    """Empty: the default branch."""


Source = HubSource | S3Source | GitSource


def source_of(uri: str) -> Source | None:
    """What `uri` names; None where nothing is to be fetched. FetchError: it is badly written."""
    scheme, found, rest = uri.partition("://")
    if found and scheme in NOT_FETCHED:
        return None
    if _UNPRINTABLE.search(uri):
        shown = uri.encode("unicode_escape").decode("ascii")
        raise FetchError(shown, Reason.INVALID_URI, "holds a line end or the like; write it anew")
    match scheme:
        case "hf":
            return _hub(uri, rest)
        case "s3":
            return _s3(uri, rest)
        case "git+https" | "git+http":
            return _git(uri)
    says = "unknown kind of source; hf://, s3:// and git+https:// can be fetched"
    raise FetchError(uri, Reason.INVALID_URI, says)


def folder_of(uri: str, part: Part = Part.ALL, root: Path | None = None) -> Path:
    """Where the files of `uri` are, once they are fetched: `<cache>/<scheme>/<hash>`, with the
    version behind it where there may be several (`versions`)."""
    named = hashlib.sha256(f"{uri}#{part}".encode()).hexdigest()[:24]
    return (root or cache_dir()) / uri.partition("://")[0] / named


def fetched(
    uri: str, part: Part = Part.ALL, root: Path | None = None, job: str = ""
) -> Path | None:
    """The folder with all that is wanted of `uri`, if it has been fetched: what `job` (by default
    that of this process) reads, else the newest."""
    for reader in (job or cache_reader(), NEWEST):
        if folder := read_by(reader, uri, part, root):
            return folder
    bases = [folder_of(uri, one, root) for one in _WIDER.get(part, (part,))]
    return next((base for base in bases if base.is_dir()), None)


def read_by(reader: str, uri: str, part: Part, root: Path | None = None) -> Path | None:
    """The folder with all that is wanted of `uri` that `reader` has been told to read."""
    for one in _WIDER.get(part, (part,)):
        if folder := chosen(folder_of(uri, one, root), reader):
            return folder
    return None


def mounted(uri: str) -> Path:
    """Where a pod finds what `pvc://claim/path` names; FetchError: badly written."""
    claim, _, path = uri.removeprefix("pvc://").partition("/")
    if claim in ("", ".", "..") or path.startswith("/") or ".." in Path(path).parts:
        raise FetchError(uri, Reason.INVALID_URI, "write pvc://claim/path")
    return CLAIMS / claim / path


def wanted(names: Iterable[str], part: Part) -> set[str]:
    return {name for name in names if any(fnmatch(name, each) for each in PATTERNS[part])}


def _hub(uri: str, rest: str) -> HubSource:
    name, _, revision = rest.partition("@")
    kind = "models"
    if name.startswith("datasets/"):
        kind, name = "datasets", name.removeprefix("datasets/")
    if not _NAME.fullmatch(name):
        says = "not a hub name; write hf://org/name@revision"
        raise FetchError(uri, Reason.INVALID_URI, says)
    return HubSource(uri, kind, name, revision or "main")


def _s3(uri: str, rest: str) -> S3Source:
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket) or not prefix:
        raise FetchError(uri, Reason.INVALID_URI, "write s3://bucket/prefix")
    return S3Source(uri, bucket, prefix)


def _git(uri: str) -> GitSource:
    url = uri.removeprefix("git+")
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    path, _, ref = path.partition("@")
    if "@" in host:
        says = "a password has no place in a URI; give it as GIT_USERNAME and GIT_PASSWORD"
        raise FetchError(f"git+{scheme}://{host.rpartition('@')[2]}", Reason.INVALID_URI, says)
    found = _HOST.fullmatch(host)
    if not found or not 0 < int(found["port"] or 443) < 1 << 16 or not path:
        raise FetchError(uri, Reason.INVALID_URI, "write git+https://host/repository@ref")
    return GitSource(uri, f"{scheme}://{host}/{path}", ref)
