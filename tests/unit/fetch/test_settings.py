"""What Secrets and users write as addresses, keys and URIs: taken, or refused in words that hold
nothing of a key, and never more than that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore import exceptions
from obstore.store import S3Store

from flexmarl.fetch.errors import FetchError, Reason
from flexmarl.fetch.s3 import KEYS, S3
from flexmarl.fetch.settings import FetchSettings, address, cleaned, key
from flexmarl.fetch.sources import Part, S3Source, source_of

URI = "s3://bucket/x"
NOWHERE = "http://127.0.0.1:1"
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
BLANKS = st.text(st.sampled_from(" \t\r\n"), max_size=3)
KEY = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
PATH = st.from_regex(r"(/[\w.~%!$&'()*+,;=:@/-]*)?", fullmatch=True).filter(str.isascii)


def refusal(call: Callable[[], object]) -> FetchError | None:
    try:
        call()
    except FetchError as error:
        return error
    return None


@given(st.dictionaries(st.text(max_size=5), WORDS))
def test_values_lose_the_blanks_around_them_and_empty_ones_are_none(given: dict[str, str]) -> None:
    found = cleaned(given)
    assert all(value and value == value.strip() for value in found.values())
    assert all(name == name.upper() for name in found)
    assert cleaned(found) == found


@given(KEY, BLANKS, BLANKS)
def test_a_key_between_blanks_is_that_key(written: str, before: str, behind: str) -> None:
    found = FetchSettings.of({"hf_token": f"{before}{written}{behind}"}).hf_token
    assert found is not None
    assert key(URI, "HF_TOKEN", found.get_secret_value()) == written


@given(WORDS)
def test_a_key_is_taken_or_refused_without_a_word_of_it(written: str) -> None:
    error = refusal(lambda: key(URI, "HF_TOKEN", written))
    if error is None:
        assert written.isascii()
    else:
        assert error.reason is Reason.DENIED
        assert len(written) < 4 or written not in str(error)


@pytest.mark.parametrize(
    "good",
    ["https://h", "http://127.0.0.1:9000", "https://s3.eu.example/some/path", "http://[::1]:80"],
)
def test_an_address_is_taken_without_the_slash_at_its_end(good: str) -> None:
    assert address(URI, "HF_ENDPOINT", f"{good}/") == good


@pytest.mark.parametrize(
    "bad",
    [
        "127.0.0.1:9000",
        "hub.example",
        "http://",
        "http:///path",
        "ftp://h",
        "http://m:80:80",
        "http://m:0",
        "http://m:99999",
        "http://m:port",
        "http://h\n",
        "http://h h",
        "http://h/?a=b",
        "http://h/#a",
        "http://hüb",
        "http://[::1",
        "http://h\\x",
        "s3cret",
        "",
    ],
)
def test_what_is_no_address_is_refused(bad: str) -> None:
    with pytest.raises(FetchError, match="HF_ENDPOINT is not the address of a server") as error:
        address(URI, "HF_ENDPOINT", bad)
    assert error.value.reason is Reason.INVALID_SETTING
    assert error.value.hopeless
    assert "s3cret" not in str(error.value)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(FetchError, match="no place in AWS_ENDPOINT_URL") as error:
        address(URI, "AWS_ENDPOINT_URL", "https://me:s3cret@h")
    assert "s3cret" not in str(error.value)


@given(path=PATH, access=KEY, secret=KEY)
def test_what_is_taken_makes_no_client_of_s3_panic(path: str, access: str, secret: str) -> None:
    config: Any = {
        "endpoint": address(URI, "AWS_ENDPOINT_URL", f"{NOWHERE}{path}"),
        "access_key_id": key(URI, "AWS_ACCESS_KEY_ID", access),
        "secret_access_key": key(URI, "AWS_SECRET_ACCESS_KEY", secret),
        "region": "us-east-1",
    }
    once: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
    store = S3Store("bucket", config=config, retry_config=once, client_options={"allow_http": True})
    with pytest.raises(exceptions.BaseError):
        obstore.head(store, "x")


@given(st.sampled_from(sorted(KEYS)), WORDS)
def test_a_client_of_s3_is_made_or_refused_whatever_a_secret_holds(name: str, value: str) -> None:
    refused = _refused({name: value})
    if refused is None:
        return
    assert refused.hopeless
    assert name in str(refused)
    assert len(value.strip()) < 5 or value.strip() not in str(refused)


def _refused(given: Mapping[str, str]) -> FetchError | None:
    with pytest.MonkeyPatch.context() as patch:
        for name in KEYS:
            patch.delenv(name, raising=False)
        return refusal(lambda: S3(S3Source(URI, "bucket", "x"), Part.ALL, given))


@pytest.mark.parametrize("value", ["true", "False", "1", " yes\n"])
def test_a_switch_is_one(value: str) -> None:
    assert _refused({"AWS_SKIP_SIGNATURE": value}) is None
    refused = _refused({"AWS_SKIP_SIGNATURE": f"{value} please"})
    assert refused is not None
    assert "AWS_SKIP_SIGNATURE must be true or false" in str(refused)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_SKIP_SIGNATURE", "AWS_CONDITIONAL_PUT"])
def test_a_variable_that_only_the_client_reads_is_refused_too(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "" if name in KEYS else "s3cret")
    with pytest.raises(FetchError, match=r"AWS_") as error:
        S3(S3Source(URI, "bucket", "x"), Part.ALL, {})
    assert error.value.reason is Reason.INVALID_SETTING
    assert "s3cret" not in str(error.value)


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "")
    monkeypatch.setenv("HF_TOKEN", "\n")
    found = FetchSettings.of({"HF_TOKEN": "", "password": " "})
    assert found.hf_endpoint == "https://huggingface.co"
    assert not (found.hf_token and found.hf_token.get_secret_value())
    assert found.git_password is None


SCHEMES = st.sampled_from(["hf", "s3", "git+https", "git+http", "pvc", "file", "ftp", "HF", ""])


@given(SCHEMES, st.sampled_from(["://", ":/", ""]), WORDS)
def test_every_uri_is_read_or_refused_as_one(scheme: str, colon: str, rest: str) -> None:
    error = refusal(lambda: source_of(f"{scheme}{colon}{rest}"))
    assert error is None or error.reason is Reason.INVALID_URI


@pytest.mark.parametrize("uri", ["hf://a/b\n", "s3://bucket/x\r\n", "hf://a/b@v\x001", "s3://b b/"])
def test_a_line_end_in_a_uri_is_told_in_one_line(uri: str) -> None:
    with pytest.raises(FetchError) as error:
        source_of(uri)
    assert error.value.reason is Reason.INVALID_URI
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("host", ["h:port", "h:80:80", "h:0", "h:99999", "h h", "[::1", "h\\x"])
def test_a_repository_needs_a_host(host: str) -> None:
    with pytest.raises(FetchError, match=r"git\+https://host/repository@ref"):
        source_of(f"git+https://{host}/team/code.git")
