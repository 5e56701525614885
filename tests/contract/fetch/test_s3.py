"""s3:// against moto's server, also over a line that breaks."""

from __future__ import annotations

import secrets
from contextlib import suppress
from urllib.parse import quote

import httpx
import pytest
from tests.contract.fetch.servers import breaking, refusing, upload
from tests.contract.fetch.test_hub import content, weights
from tests.ports import free_port

from flexmarl.fetch.errors import FetchError, Reason
from flexmarl.fetch.fetching import fetch
from flexmarl.fetch.sources import Part

pytestmark = pytest.mark.usefixtures("quick", "cache")


@pytest.fixture
def bucket(s3: str, model: dict[str, bytes]) -> str:
    name = f"b{secrets.token_hex(6)}"
    upload(s3, name, {f"models/a/{key}": data for key, data in model.items()})
    upload(s3, name, {"models/ab/config.json": b"another", "data/tasks 1.jsonl": b"{}\n"})
    return name


def test_the_objects_below_a_prefix_arrive(bucket: str, model: dict[str, bytes]) -> None:
    assert content(fetch(f"s3://{bucket}/models/a", Part.MODEL).folder) == weights(model)
    assert content(fetch(f"s3://{bucket}/models/a/").folder) == model


def test_one_object_arrives_under_its_own_name(bucket: str) -> None:
    found = fetch(f"s3://{bucket}/data/tasks 1.jsonl")
    assert content(found.folder) == {"tasks 1.jsonl": b"{}\n"}


def test_over_a_line_that_breaks_every_object_arrives_whole(
    bucket: str, model: dict[str, bytes], s3_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with breaking(s3_port, after=100_000) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        found = fetch(f"s3://{bucket}/models/a", Part.MODEL)
        assert content(found.folder) == weights(model)


def test_markers_of_folders_are_no_files(s3: str) -> None:
    """Consoles make them, and some tools one for each level."""
    name = f"b{secrets.token_hex(6)}"
    objects = {"data/set/a.jsonl": b"{}\n", "data/set/sub/b.jsonl": b"[]\n"}
    markers = dict.fromkeys(("data/", "data/set/", "data/set/sub/", "data/other/"), b"")
    upload(s3, name, objects | markers)
    for uri in (f"s3://{name}/data/set", f"s3://{name}/data/set/"):
        assert content(fetch(uri).folder) == {"a.jsonl": b"{}\n", "sub/b.jsonl": b"[]\n"}
    assert content(fetch(f"s3://{name}/data/set/sub").folder) == {"b.jsonl": b"[]\n"}
    with pytest.raises(FetchError, match="holds nothing at data/other") as error:
        fetch(f"s3://{name}/data/other")
    assert error.value.reason is Reason.NOT_FOUND


def test_an_object_that_is_a_folder_as_well_is_told(s3: str) -> None:
    name = f"b{secrets.token_hex(6)}"
    upload(s3, name, {"set/a": b"x", "set/a/b": b"y"})
    with pytest.raises(FetchError, match="a is an object and a folder") as error:
        fetch(f"s3://{name}/set")
    assert error.value.reason is Reason.DAMAGED


@pytest.mark.parametrize("key", ["a//b.json", "a b/ü?#%25.json", "a/b\\c.json"])
def test_a_key_that_is_no_path_is_fetched_or_told(s3: str, key: str) -> None:
    name = f"b{secrets.token_hex(6)}"
    upload(s3, name, {"set/first.json": b"1"})
    httpx.put(f"{s3}/{name}/set/{quote(key)}", content=b"2").raise_for_status()
    found = None
    with suppress(FetchError):
        found = content(fetch(f"s3://{name}/set").folder)
    assert found in (None, {"first.json": b"1", key: b"2"})


@pytest.mark.parametrize("missing", ["models/none", "no-such"])
def test_what_is_not_there_is_named(bucket: str, missing: str) -> None:
    with pytest.raises(FetchError, match=f"holds nothing at {missing}") as error:
        fetch(f"s3://{bucket}/{missing}")
    assert error.value.reason is Reason.NOT_FOUND


def test_a_bucket_that_is_not_there_is_named(s3: str) -> None:
    with pytest.raises(FetchError, match="bucket no-such-bucket") as error:
        fetch("s3://no-such-bucket/x")
    assert error.value.reason is Reason.NOT_FOUND


def test_a_server_that_cannot_be_reached_is_named(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setattr("flexmarl.fetch.download.ATTEMPTS", 2)
    with pytest.raises(FetchError, match=f"127.0.0.1:{port}.*AWS_ENDPOINT_URL") as error:
        fetch("s3://bucket/x")
    assert error.value.reason is Reason.UNREACHABLE


REFUSALS = [
    (400, "ExpiredToken", Reason.DENIED, "these keys have run out"),
    (403, "AccessDenied", Reason.DENIED, "refuses these keys"),
    (403, "RequestTimeTooSkewed", Reason.UNREACHABLE, "set its clock"),
    (400, "InvalidRange", Reason.UNREACHABLE, "check AWS_ENDPOINT_URL"),
]


@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize("refusal", REFUSALS, ids=[code for _, code, _, _ in REFUSALS])
def test_why_a_server_refuses_is_told(
    refusal: tuple[int, str, Reason, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, code, reason, words = refusal
    monkeypatch.setattr("flexmarl.fetch.download.ATTEMPTS", 2)
    with refusing(status, code) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(FetchError, match=words) as error:
            fetch("s3://bucket/x")
    assert error.value.reason is reason


def test_missing_keys_are_told(
    s3: str, monkeypatch: pytest.MonkeyPatch, model: dict[str, bytes]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(FetchError, match="give AWS_ACCESS_KEY_ID") as error:
        fetch("s3://bucket/x")
    assert error.value.reason is Reason.DENIED
