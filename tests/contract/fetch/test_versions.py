"""A cache that several jobs share: what is uploaded anew is read by later jobs, by them only."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from tests.contract.fetch.conftest import KIB
from tests.contract.fetch.servers import COMMIT, Hub, upload
from tests.contract.fetch.test_hub import content

from flexmarl.fetch.errors import FetchError, Reason
from flexmarl.fetch.fetching import Fetched, fetch
from flexmarl.fetch.sources import Part, fetched

URI = "hf://org/model@main"
pytestmark = pytest.mark.usefixtures("quick", "cache")


def read(uri: str, job: str, part: Part = Part.MODEL) -> Fetched:
    return fetch(uri, part, reader=job)


def test_data_that_was_uploaded_anew_is_read_by_the_next_job(s3: str) -> None:
    bucket = f"b{secrets.token_hex(6)}"
    uri = f"s3://{bucket}/tasks.jsonl"
    upload(s3, bucket, {"tasks.jsonl": b"old\n"})
    first = read(uri, "job-1", Part.ALL)
    upload(s3, bucket, {"tasks.jsonl": b"new\n"})
    assert content(read(uri, "job-1", Part.ALL).folder) == {"tasks.jsonl": b"old\n"}
    assert content(read(uri, "job-2", Part.ALL).folder) == {"tasks.jsonl": b"new\n"}
    assert content(first.folder) == {"tasks.jsonl": b"old\n"}  # nobody took it away
    assert content(fetched(uri, job="job-1")) == {"tasks.jsonl": b"old\n"}
    assert content(fetched(uri)) == {"tasks.jsonl": b"new\n"}


def test_a_process_reads_what_its_job_has_found(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    read(URI, "job-1")
    hub.files["config.json"] = b'{"new": true}'
    read(URI, "job-2")
    for job, size in (("job-1", 23), ("job-2", 13), ("", 13), ("of/one/machine", 13)):
        monkeypatch.setenv("FLEXMARL_JOB_UID", job)
        folder = fetch(URI, Part.MODEL).folder
        assert folder is not None
        assert (folder / "config.json").stat().st_size == size
        assert fetched(URI, Part.TOKENIZER) == folder


def test_what_has_not_changed_is_not_sent_again(hub: Hub) -> None:
    first, second = read(URI, "job-1"), read(URI, "job-2")
    assert first.folder == second.folder
    assert second.bytes == 0
    hub.files["README.md"] = b"nobody loads it"
    assert read(URI, "job-3").folder == first.folder
    hub.files["config.json"] = b"{}"
    changed = read(URI, "job-4")
    assert changed.folder != first.folder
    del hub.files["config.json"]
    hub.files["config.json"] = b'{"model_type": "llama"}'
    assert read(URI, "job-5").folder == first.folder  # as it was before: it is there still


def test_a_commit_and_what_the_job_has_read_are_not_asked_for(hub: Hub) -> None:
    read(URI, "job-1")
    pinned = f"hf://org/model@{COMMIT}"
    read(pinned, "job-1")
    hub.refuse = [500] * 99
    assert read(URI, "job-1").bytes == 0
    assert read(URI, "job-1", Part.TOKENIZER).bytes == 0
    assert read(pinned, "job-2").bytes == 0
    assert len(hub.refuse) == 99


def test_a_server_that_is_away_does_not_keep_a_job_from_what_is_there(hub: Hub) -> None:
    first = read(URI, "job-1")
    hub.files["config.json"] = b"{}"
    hub.refuse = [500] * 99
    found = read(URI, "job-2")
    assert found.folder == first.folder
    assert "cannot be reached" in found.unchecked
    hub.refuse = []
    assert read(URI, "job-2").folder == first.folder  # all of its pods read the same
    assert read(URI, "job-3").folder != first.folder


def test_a_new_version_that_breaks_off_is_not_replaced_by_the_old(hub: Hub) -> None:
    read(URI, "job-1")
    hub.files["model-1.safetensors"] = b"x" * 4 * KIB
    hub.damaged = 99
    with pytest.raises(FetchError) as error:
        read(URI, "job-2")
    assert error.value.reason is Reason.DAMAGED


@pytest.mark.parametrize("status", [401, 404])
def test_an_answer_counts_whatever_is_there(hub: Hub, status: int) -> None:
    read(URI, "job-1")
    hub.refuse = [status]
    with pytest.raises(FetchError):
        read(URI, "job-2")


@pytest.mark.parametrize("torn", [b"", b"../../elsewhere\n", b"\xff", b"."])
def test_a_choice_that_a_crash_has_torn_is_made_again(hub: Hub, cache: Path, torn: bytes) -> None:
    first = read(URI, "job-1").folder
    (choice,) = cache.rglob("job-1")
    choice.write_bytes(torn)
    assert read(URI, "job-1").folder == first
