"""A folder of code out of a git server: one commit, without its history.

Not resumable, git has no way to; but the folder appears whole or not at all. Submodules and LFS
objects are not fetched.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dulwich.client import HttpGitClient, HTTPUnauthorized
from dulwich.errors import GitProtocolError, HangupException, NotGitRepository
from dulwich.index import build_index_from_tree
from dulwich.objects import Commit, ObjectID, Tag
from dulwich.refs import Ref
from dulwich.repo import Repo
from urllib3 import BaseHTTPResponse, PoolManager, Timeout
from urllib3.exceptions import HTTPError

from flexmarl.fetch.download import MARKER, locked, patiently
from flexmarl.fetch.errors import FetchError, InterruptedReadError, Reason, of_os
from flexmarl.fetch.settings import FetchSettings
from flexmarl.fetch.sources import GitSource

_COMMIT = re.compile(r"[0-9a-f]{40}")


def checkout(source: GitSource, folder: Path, settings: FetchSettings) -> None:
    """Make `folder` hold the files of the commit that `source` names; FetchError."""
    if folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if not folder.is_dir():
                partial = folder.with_name(f"{folder.name}.partial")
                patiently(source.uri, lambda: _clone(source, partial, settings))
                os.replace(partial, folder)
    except OSError as error:
        raise of_os(error, source.uri, folder.parent) from error


def _clone(source: GitSource, partial: Path, settings: FetchSettings) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    password = _sent(settings.git_password.get_secret_value()) if settings.git_password else None
    pool = _Pool(timeout=Timeout(connect=10, read=60), retries=False)
    client = HttpGitClient(
        source.url,
        pool_manager=pool,
        username=_sent(settings.git_username) or ("token" if password else None),
        password=password,
        quiet=True,
    )
    chosen: list[ObjectID] = []

    def wants(refs: Mapping[Ref, ObjectID], depth: int | None = None) -> list[ObjectID]:
        chosen[:] = [_commit_of(source, refs)]
        return chosen

    with Repo.init(str(partial)) as repo:
        try:
            client.fetch(b"", repo, determine_wants=wants, depth=1)
        except HTTPUnauthorized as error:
            says = (
                "the server wants a password; give GIT_USERNAME and GIT_PASSWORD (on a cluster in "
                "the Secret that code.git.secretRef names)"
            )
            raise FetchError(source.uri, Reason.DENIED, says) from error
        except NotGitRepository as error:
            says = "there is no such repository, or not for everybody; correct the URL"
            raise FetchError(source.uri, Reason.NOT_FOUND, says) from error
        except (HTTPError, HangupException) as error:
            raise InterruptedReadError(f"{source.url}: {error}") from error
        except GitProtocolError as error:
            lost = isinstance(error.__context__ or error.__cause__, HTTPError)
            if lost or re.search(r"status 5\d\d", str(error)):
                raise InterruptedReadError(f"{source.url}: {error}") from error
            says = f"the server refuses {source.ref or 'HEAD'}: {error}; name a branch or a tag"
            raise FetchError(source.uri, Reason.NOT_FOUND, says) from error
        finally:
            pool.clear()
        found = repo.object_store[chosen[0]]
        while isinstance(found, Tag):
            found = repo.object_store[found.object[1]]
        if not isinstance(found, Commit):
            raise FetchError(source.uri, Reason.NOT_FOUND, f"{source.ref} is no commit")
        build_index_from_tree(str(partial), repo.index_path(), repo.object_store, found.tree)
        commit = found.id.decode()
    shutil.rmtree(partial / ".git")
    marker = json.dumps({"uri": source.uri, "commit": commit})
    (partial / MARKER).write_text(marker + "\n", encoding="utf-8")


def _sent(text: str) -> str:
    """What urllib3, which writes it in Latin-1, sends as UTF-8: so does git."""
    return text.encode("utf-8", "surrogateescape").decode("latin-1")


class _Pool(PoolManager):
    """Closes answers, too, that dulwich leaves open when it raises."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._answers: list[BaseHTTPResponse] = []

    def urlopen(self, *arguments: Any, **options: Any) -> BaseHTTPResponse:
        answer = super().urlopen(*arguments, **options)
        self._answers.append(answer)
        return answer

    def clear(self) -> None:
        for answer in self._answers:
            answer.close()
        super().clear()


def _commit_of(source: GitSource, refs: Mapping[Ref, ObjectID]) -> ObjectID:
    """What `source.ref` means among what the server has; FetchError."""
    ref = source.ref.encode()
    names = (b"refs/heads/" + ref, b"refs/tags/" + ref) if ref else (b"HEAD",)
    for name in names:
        if name in refs:
            return refs[Ref(name)]
    if _COMMIT.fullmatch(source.ref):
        return ObjectID(ref)
    heads = sorted(
        name.decode().removeprefix("refs/heads/")
        for name in refs
        if name.startswith(b"refs/heads/")
    )
    says = (
        f"there is no branch or tag {source.ref!r}; branches are {', '.join(heads[:8]) or 'none'}"
    )
    raise FetchError(source.uri, Reason.NOT_FOUND, says)
