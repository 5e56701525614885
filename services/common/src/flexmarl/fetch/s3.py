"""Reads objects of S3 and of servers that speak like it.

Which server and whose keys is in the environment as for every other client: `AWS_ENDPOINT_URL`,
`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, web identities of a cluster, or
`AWS_SKIP_SIGNATURE=true` for a public bucket.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import obstore
from obstore import exceptions
from obstore.store import S3Store

from flexmarl.fetch.errors import FetchError, InterruptedReadError, Reason
from flexmarl.fetch.remote import Digest, RemoteFile
from flexmarl.fetch.settings import address, cleaned, key
from flexmarl.fetch.sources import Part, S3Source, wanted
from flexmarl.runtime.settings import variables

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import S3Config

CHUNK = 1 << 16
KEYS = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_ENDPOINT_URL": "endpoint",
    "AWS_REGION": "region",
    "AWS_DEFAULT_REGION": "default_region",
    "AWS_SKIP_SIGNATURE": "skip_signature",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "virtual_hosted_style_request",
}
_SWITCHES = ("AWS_SKIP_SIGNATURE", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
_SWITCH = re.compile(r"true|false|yes|no|on|off|[yn10]", re.IGNORECASE)
_REGION = re.compile(r"[\w.-]+", re.ASCII)
_MD5 = re.compile(r"[0-9a-f]{32}")
_URL = re.compile(r"(?<=://)[^\s/?)]+")
_DENIED = re.compile(
    r"40[13] |AccessDenied|Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch"
    r"|/latest/(api/token|meta-data)"  # no keys given, and no machine that has some
)
_EXPIRED = re.compile(r"ExpiredToken|TokenRefreshRequired")
_SKEWED = re.compile(r"RequestTimeTooSkewed")
_NO_BUCKET = re.compile(r"NoSuchBucket")


class S3:
    """The objects below one prefix."""

    def __init__(self, source: S3Source, part: Part, given: Mapping[str, str]) -> None:
        """`given`: variables that go before those of the environment."""
        self.uri = source.uri
        self._source, self._part = source, part
        self._keys: dict[str, str] = {}
        self._tags: dict[str, str] = {}
        self._store = _store(source, given)

    def files(self) -> Sequence[RemoteFile]:
        prefix = self._source.prefix
        try:
            below = [meta for batch in obstore.list(self._store, prefix) for meta in batch]
            named = {
                meta["path"].removeprefix(f"{prefix}/"): meta
                for meta in below
                if meta["path"] != prefix  # the marker of the folder itself
            }
            names = wanted(self._without_markers(named), self._part)
            if not named:
                named = {prefix.rpartition("/")[2]: obstore.head(self._store, prefix)}
                names = set(named)
        except (exceptions.BaseError, OSError) as error:
            raise self._words(error) from error
        found = []
        for name in sorted(names):
            meta = named[name]
            tag = (meta["e_tag"] or "").strip('"')
            digest = Digest("md5", tag, sure=False) if _MD5.fullmatch(tag) else None
            self._keys[name] = meta["path"]
            if meta["e_tag"]:
                self._tags[name] = meta["e_tag"]
            version = tag or meta["last_modified"].isoformat()
            found.append(RemoteFile(name, meta["size"], version, digest))
        return found

    def _without_markers(self, named: Mapping[str, ObjectMeta]) -> set[str]:
        """Consoles make an empty object for each folder. FetchError: no folder can be like that."""
        folders = {
            "/".join(parts[:depth])
            for parts in (name.split("/") for name in named)
            for depth in range(1, len(parts))
        }
        both = [name for name in folders & named.keys() if named[name]["size"]]
        if both:
            says = f"{both[0]} is an object and a folder of others; rename one of them"
            raise FetchError(self.uri, Reason.DAMAGED, says)
        return named.keys() - folders

    def read(self, file: RemoteFile, offset: int) -> Generator[bytes, None, None]:
        try:
            options: GetOptions = {"range": {"offset": offset}}
            if file.path in self._tags:
                options["if_match"] = self._tags[file.path]
            answer = obstore.get(self._store, self._keys[file.path], options=options)
            for chunk in answer.stream(min_chunk_size=CHUNK):
                yield bytes(chunk)
        except exceptions.PreconditionError as error:
            says = f"{file.path} was replaced while it was fetched; fetch it again"
            raise FetchError(self.uri, Reason.UNREACHABLE, says) from error
        except (exceptions.BaseError, OSError) as error:
            raise self._words(error) from error

    def _words(self, error: Exception) -> FetchError | InterruptedReadError:
        text = str(error)
        bucket = self._source.bucket
        if _SKEWED.search(text):  # told as a refusal of the keys, which are in order
            says = f"bucket {bucket} finds the time of this machine wrong; set its clock"
            return FetchError(self.uri, Reason.UNREACHABLE, says)
        if _EXPIRED.search(text):
            says = (
                f"bucket {bucket} says that these keys have run out; give new ones, "
                "AWS_SESSION_TOKEN too (on a cluster in the Secret that secretRef names)"
            )
            return FetchError(self.uri, Reason.DENIED, says)
        if isinstance(
            error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError
        ) or (_DENIED.search(text)):
            says = (
                f"bucket {bucket} refuses these keys; give AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY (on a cluster in the Secret that secretRef names), or "
                "AWS_SKIP_SIGNATURE=true where it is public"
            )
            return FetchError(self.uri, Reason.DENIED, says)
        if isinstance(error, exceptions.NotFoundError | FileNotFoundError) or _NO_BUCKET.search(
            text
        ):
            says = f"bucket {bucket} holds nothing at {self._source.prefix}; correct the URI"
            return FetchError(self.uri, Reason.NOT_FOUND, says)
        host = _URL.search(text)
        where = host[0] if host else f"the server of bucket {bucket}"
        reason = text.partition("\n")[0].rpartition(": ")[2][:200]
        return InterruptedReadError(f"{where}: {reason} (check AWS_ENDPOINT_URL)")


def _store(source: S3Source, given: Mapping[str, str]) -> S3Store:
    """FetchError: no client can be made, or it would panic at its first request."""
    config = _config(source.uri, given)
    try:
        return S3Store(
            source.bucket,
            config=cast("S3Config", config),
            client_options={
                "connect_timeout": timedelta(seconds=10),
                "read_timeout": timedelta(seconds=30),
                "timeout": timedelta(days=7),  # of a whole file
                "allow_http": True,  # as its endpoint says
            },
            retry_config={  # ours goes on where a transfer stopped
                "max_retries": 1,
                "backoff": {
                    "init_backoff": timedelta(seconds=0.1),
                    "max_backoff": timedelta(seconds=1),
                    "base": 2,
                },
                "retry_timeout": timedelta(seconds=10),
            },
        )
    except exceptions.BaseError as error:  # of variables that only the client knows
        says = "one of the variables AWS_* in the environment cannot be read; mend or unset it"
        raise FetchError(source.uri, Reason.INVALID_SETTING, says) from error


def _config(uri: str, given: Mapping[str, str]) -> dict[str, str]:
    """Of the client, by its own names: `given` before the environment, which it would read."""
    around = {f"AWS_{name}": value for name, value in variables("AWS_").items()}
    known = {
        name: value for name, value in cleaned(around | cleaned(given)).items() if name in KEYS
    }
    for name, value in known.items():
        if name == "AWS_ENDPOINT_URL":
            known[name] = address(uri, name, value)
        elif name in _SWITCHES:
            _check(uri, name, _SWITCH.fullmatch(value), "true or false")
        elif name.endswith("REGION"):
            _check(uri, name, _REGION.fullmatch(value), "the name of a region")
        else:
            key(uri, name, value)
    pair = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    if sum(name in known for name in pair) == 1:
        raise FetchError(uri, Reason.DENIED, f"{' and '.join(pair)} are needed both")
    for name in around.keys() - known.keys():
        _check(uri, name, name not in ("AWS_ENDPOINT_URL", *_SWITCHES), "unset, for it is empty")
    return {KEYS[name]: value for name, value in known.items()}


def _check(uri: str, name: str, good: object, should_be: str) -> None:
    if not good:
        raise FetchError(uri, Reason.INVALID_SETTING, f"{name} must be {should_be}")
