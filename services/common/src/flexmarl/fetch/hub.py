"""Reads repositories of a Hugging Face hub: one request lists, ranges bring the bytes.

Not by huggingface_hub's own download: that one names its partial files at random, so a process that
was killed starts again from the first byte.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Self
from urllib.parse import quote

import httpx

from flexmarl.fetch.errors import FetchError, InterruptedReadError, Reason
from flexmarl.fetch.remote import Digest, RemoteFile
from flexmarl.fetch.settings import FetchSettings, address, key
from flexmarl.fetch.sources import HubSource, Part, wanted

TIMEOUT = httpx.Timeout(30, connect=10)
"""Of each read, not of a whole file."""
CHUNK = 1 << 16


class Hub:
    """The files of one revision."""

    def __init__(self, source: HubSource, part: Part, settings: FetchSettings) -> None:
        self.uri = source.uri
        self._source, self._part = source, part
        self._endpoint = address(self.uri, "HF_ENDPOINT", settings.hf_endpoint)
        token = settings.hf_token.get_secret_value() if settings.hf_token else ""
        self._has_token = bool(token)
        headers = {"User-Agent": "flexmarl", "Accept-Encoding": "identity"}
        if token:  # httpx drops it at another host
            headers["Authorization"] = f"Bearer {key(self.uri, 'HF_TOKEN', token)}"
        self._client = httpx.Client(headers=headers, timeout=TIMEOUT, follow_redirects=True)
        self._commit = source.revision

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def files(self) -> Sequence[RemoteFile]:
        source = self._source
        revision = quote(source.revision, safe="")
        url = f"{self._endpoint}/api/{source.kind}/{source.name}/revision/{revision}"
        try:
            answer = self._client.get(url, params={"blobs": "true"})
            self._refuse(answer)
            found = answer.json()
            self._commit = str(found["sha"])
            files = [_file(entry) for entry in found["siblings"]]
        except httpx.HTTPError as error:
            raise self._broken(error) from error
        except (ValueError, KeyError, TypeError) as error:
            says = f"{self._endpoint} does not answer as a hub does; check HF_ENDPOINT"
            raise FetchError(self.uri, Reason.UNREACHABLE, says) from error
        names = wanted((file.path for file in files), self._part)
        return [file for file in files if file.path in names]

    def read(self, file: RemoteFile, offset: int) -> Generator[bytes, None, None]:
        source = self._source
        kind = "datasets/" if source.kind == "datasets" else ""
        url = f"{self._endpoint}/{kind}{source.name}/resolve/{self._commit}/{quote(file.path)}"
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        try:
            with self._client.stream("GET", url, headers=headers) as answer:
                self._refuse(answer)
                passed_over = offset if offset and answer.status_code == 200 else 0  # no ranges
                for chunk in answer.iter_bytes(CHUNK):
                    if passed_over >= len(chunk):
                        passed_over -= len(chunk)
                        continue
                    yield chunk[passed_over:]
                    passed_over = 0
        except httpx.HTTPError as error:
            raise self._broken(error) from error

    def _broken(self, error: httpx.HTTPError) -> InterruptedReadError:
        ours = isinstance(error, httpx.LocalProtocolError)  # its words quote what was to be sent
        says = type(error).__name__ if ours else str(error) or type(error).__name__
        return InterruptedReadError(f"{self._endpoint}: {says}")

    def _refuse(self, answer: httpx.Response) -> None:
        status = answer.status_code
        if status in (200, 206):
            return
        source = self._source
        if status in (401, 403):
            says = (
                f"the hub does not let this token read {source.name}; ask for access there"
                if self._has_token
                else f"the hub knows no public {source.name}; correct the name, or give a token as "
                "HF_TOKEN (on a cluster from the Secret that model.secretRef names)"
            )
            raise FetchError(self.uri, Reason.DENIED, says)
        if status == 404:
            says = f"{self._endpoint} has no {source.name} at revision {source.revision}"
            raise FetchError(self.uri, Reason.NOT_FOUND, f"{says}; correct the URI")
        if status == 429 or status >= 500:
            raise InterruptedReadError(f"{self._endpoint} answers {status}")
        says = f"{self._endpoint} answers {status} to a request for {source.name}"
        raise FetchError(self.uri, Reason.UNREACHABLE, f"{says}; check HF_ENDPOINT")


def _file(entry: dict[str, Any]) -> RemoteFile:
    lfs = entry.get("lfs")
    if lfs:
        digest = Digest("sha256", str(lfs["sha256"]))
        return RemoteFile(entry["rfilename"], int(lfs["size"]), digest.value, digest)
    digest = Digest("git", str(entry["blobId"]))
    return RemoteFile(entry["rfilename"], int(entry["size"]), digest.value, digest)
