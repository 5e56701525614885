"""How sources are written, and where each lies in the cache."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.fetch.archive import pack, unpack
from flexmarl.fetch.errors import FetchError, Reason, of_os
from flexmarl.fetch.sources import (
    GitSource,
    HubSource,
    Part,
    S3Source,
    fetched,
    folder_of,
    source_of,
    wanted,
)


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("hf://org/name", HubSource("hf://org/name", "models", "org/name", "main")),
        ("hf://org/name@v1", HubSource("hf://org/name@v1", "models", "org/name", "v1")),
        (
            "hf://datasets/org/name@v1",
            HubSource("hf://datasets/org/name@v1", "datasets", "org/name", "v1"),
        ),
        ("s3://bucket/a/b/", S3Source("s3://bucket/a/b/", "bucket", "a/b")),
        (
            "git+https://host:8443/team/code.git@feature/x",
            GitSource(
                "git+https://host:8443/team/code.git@feature/x",
                "https://host:8443/team/code.git",
                "feature/x",
            ),
        ),
        ("random://llama?hidden=8", None),
        ("gym://chain_sum", None),
        ("file://tasks.jsonl", None),
        ("pvc://claim/model", None),
    ],
)
def test_a_source_is_read_from_its_uri(uri: str, source: object) -> None:
    assert source_of(uri) == source


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("hf://name", "hf://org/name@revision"),
        ("hf://a/b/c", "hf://org/name@revision"),
        ("s3://bucket", "s3://bucket/prefix"),
        ("s3:///key", "s3://bucket/prefix"),
        ("git+https://host", "git\\+https://host/repository@ref"),
        ("ftp://host/x", "unknown kind of source"),
        ("org/name", "unknown kind of source"),
    ],
)
def test_a_uri_that_is_badly_written_is_told_how(uri: str, words: str) -> None:
    with pytest.raises(FetchError, match=words) as error:
        source_of(uri)
    assert error.value.reason is Reason.INVALID_URI
    assert error.value.hopeless


def test_a_password_in_a_uri_is_refused_and_not_repeated() -> None:
    with pytest.raises(FetchError, match="GIT_PASSWORD") as error:
        source_of("git+https://me:s3cret@host/code.git")
    assert "s3cret" not in str(error.value)


def test_every_uri_and_part_has_a_folder_of_its_own(tmp_path: Path) -> None:
    uris = ("hf://a/b", "hf://a/b@v1", "s3://a/b")
    folders = {folder_of(uri, part, tmp_path) for uri in uris for part in Part}
    assert len(folders) == 9
    assert {folder.parent.name for folder in folders} == {"hf", "s3"}


def test_a_whole_model_has_its_tokenizer_but_not_the_other_way_round(tmp_path: Path) -> None:
    folder_of("hf://a/b", Part.TOKENIZER, tmp_path).mkdir(parents=True)
    assert fetched("hf://a/b", Part.MODEL, tmp_path) is None
    folder_of("hf://a/b", Part.MODEL, tmp_path).mkdir()
    assert fetched("hf://a/b", Part.TOKENIZER, tmp_path) is not None
    assert fetched("hf://a/b", Part.ALL, tmp_path) is None


def test_the_files_of_a_part_are_chosen_by_name() -> None:
    names = ["config.json", "model.safetensors", "model.bin", "README.md", "tokenizer.model"]
    assert wanted(names, Part.TOKENIZER) == {"config.json", "tokenizer.model"}
    assert wanted(names, Part.MODEL) == {"config.json", "tokenizer.model", "model.safetensors"}
    assert wanted(names, Part.ALL) == set(names)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, Reason.DISK_FULL),
        (errno.EDQUOT, Reason.DISK_FULL),
        (errno.EROFS, Reason.NO_CACHE),
        (errno.EACCES, Reason.NO_CACHE),
    ],
)
def test_a_disk_that_refuses_is_named(number: int, reason: Reason) -> None:
    error = of_os(OSError(number, "says the disk"), "hf://a/b", Path("/cache"))
    assert error.reason is reason
    assert "/cache" in str(error)
    assert not error.hopeless


NAMES = st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,3}", fullmatch=True)


@given(st.dictionaries(NAMES, st.binary(max_size=100), max_size=8))
def test_equal_files_are_packed_to_equal_bytes(files: dict[str, bytes]) -> None:
    assert pack(files) == pack(dict(reversed(files.items())))


def test_what_is_packed_is_unpacked(tmp_path: Path) -> None:
    files = {"data/tasks.jsonl": b"{}\n", "flow.py": b"x = 1\n", "tief/ä.txt": "ö".encode()}
    (tmp_path / "archive").write_bytes(pack(files))
    for _ in range(2):
        assert unpack(tmp_path / "archive", tmp_path / "job") == 3
    assert {name: (tmp_path / "job" / name).read_bytes() for name in files} == files


@pytest.mark.parametrize("content", [b"", b"no archive", pack({"a": b"x" * 1000})[:40]])
def test_a_broken_archive_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(FetchError, match="apply the job again"):
        unpack(tmp_path / "archive", tmp_path / "job")


def test_an_archive_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(pack({"../evil": b"x"}))
    with pytest.raises(FetchError, match="apply the job again"):
        unpack(tmp_path / "archive", tmp_path / "job")
    assert not (tmp_path / "evil").exists()
