"""git+http:// against git's own server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.fetch.servers import serving_git
from tests.ports import free_port

from flexmarl.fetch.errors import FetchError, Reason
from flexmarl.fetch.fetching import copy_into, fetch

pytestmark = pytest.mark.usefixtures("quick", "cache")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "tag.gpgSign=false")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def commits(tmp_path: Path) -> list[str]:
    """Of the repository team.git: two commits, tag v1 on the first, branch next on the second."""
    folder = tmp_path / "git" / "team.git"
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "uploadpack.allowReachableSHA1InWant", "true")
    found = []
    for number in (1, 2):
        (folder / "flow").mkdir(exist_ok=True)
        (folder / "flow" / "play.py").write_text(f"ROUND = {number}\n")
        (folder / "now").unlink(missing_ok=True)
        (folder / "now").symlink_to("flow/play.py")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"round {number}")
        found.append(git(folder, "rev-parse", "HEAD"))
        if number == 1:
            git(folder, "tag", "-a", "v1", "-m", "first")
    git(folder, "branch", "next")
    return found


@pytest.fixture
def server(commits: list[str], tmp_path: Path) -> Iterator[str]:
    with serving_git(tmp_path / "git") as url:
        yield f"git+{url}/team.git"


def round_of(uri: str) -> str:
    folder = fetch(uri).folder
    assert folder is not None
    assert not (folder / ".git").exists()
    return (folder / "flow" / "play.py").read_text()


@pytest.mark.parametrize(("ref", "number"), [("", 2), ("@v1", 1), ("@main", 2), ("@next", 2)])
def test_a_branch_a_tag_or_the_default_is_checked_out(server: str, ref: str, number: int) -> None:
    assert round_of(f"{server}{ref}") == f"ROUND = {number}\n"


def test_a_commit_is_checked_out(server: str, commits: list[str]) -> None:
    assert round_of(f"{server}@{commits[0]}") == "ROUND = 1\n"


def test_code_is_put_where_it_is_wanted(server: str, tmp_path: Path) -> None:
    into = tmp_path / "job"
    into.mkdir()
    into.chmod(0o2777)  # a volume's root is not ours to change
    for _ in range(2):  # a container may start again
        copy_into(fetch(server), into)
    assert into.stat().st_mode & 0o7777 == 0o2777
    assert (into / "flow" / "play.py").is_file()
    assert (into / "now").readlink() == Path("flow/play.py")
    copy_into(fetch(server), into / "a" / "new")
    assert (into / "a" / "new" / "flow" / "play.py").is_file()


def test_a_ref_that_is_not_there_is_told_with_those_that_are(server: str) -> None:
    with pytest.raises(FetchError, match="no branch or tag 'v9'; branches are main, next") as error:
        fetch(f"{server}@v9")
    assert error.value.reason is Reason.NOT_FOUND


def test_a_repository_that_is_not_there_is_told(server: str) -> None:
    with pytest.raises(FetchError, match="no such repository") as error:
        fetch(server.replace("team", "none"))
    assert error.value.reason is Reason.NOT_FOUND


def test_a_server_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flexmarl.fetch.download.ATTEMPTS", 2)
    with pytest.raises(FetchError, match="cannot be reached") as error:
        fetch(f"git+http://127.0.0.1:{free_port()}/team.git")
    assert error.value.reason is Reason.UNREACHABLE


def test_a_private_repository_needs_a_password(
    commits: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_git(tmp_path / "git", password="s3cret") as url:
        with pytest.raises(FetchError, match="GIT_PASSWORD") as error:
            fetch(f"git+{url}/team.git")
        assert error.value.reason is Reason.DENIED
        monkeypatch.setenv("GIT_PASSWORD", "s3cret")
        assert round_of(f"git+{url}/team.git") == "ROUND = 2\n"
