"""hf:// against a hub that cuts connections, lies and refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.contract.fetch.conftest import KIB
from tests.contract.fetch.servers import Hub
from tests.ports import free_port

from flexmarl.contracts.preparation import Fetching
from flexmarl.fetch import download
from flexmarl.fetch.errors import FetchError, Reason
from flexmarl.fetch.fetching import fetch
from flexmarl.fetch.sources import Part, fetched, folder_of

URI = "hf://org/model@v1"
pytestmark = pytest.mark.usefixtures("quick", "cache")


def content(folder: Path | None) -> dict[str, bytes]:
    assert folder is not None
    files = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def weights(model: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in model.items() if name != "pytorch_model.bin"}


def reason_of(uri: str = URI) -> tuple[Reason, str]:
    with pytest.raises(FetchError) as error:
        fetch(uri, Part.MODEL)
    assert str(error.value).startswith(uri)
    return error.value.reason, str(error.value)


def test_a_model_arrives_as_it_is_without_what_no_one_loads(
    hub: Hub, model: dict[str, bytes], cache: Path
) -> None:
    found = fetch(URI, Part.MODEL)
    assert found.folder is not None
    assert found.folder == fetched(URI, Part.MODEL)
    assert found.folder.parent == cache / "hf"
    assert content(found.folder) == weights(model)
    assert found.bytes == sum(map(len, weights(model).values()))
    assert {path.suffix for path in found.folder.parent.iterdir()} == {"", ".lock", ".read"}


def test_what_is_there_is_not_asked_for_again(hub: Hub) -> None:
    first = fetch(URI, Part.MODEL)
    hub.refuse = [500] * 99
    assert fetch(URI, Part.MODEL).folder == first.folder
    assert fetch(URI, Part.TOKENIZER).folder == first.folder


def test_a_tokenizer_comes_without_weights(hub: Hub) -> None:
    assert set(content(fetch(URI, Part.TOKENIZER).folder)) == {"config.json", "tokenizer.json"}


def test_a_server_that_cuts_every_connection_is_read_in_pieces(
    hub: Hub, model: dict[str, bytes]
) -> None:
    hub.cut_after = 64 * KIB
    assert content(fetch(URI, Part.MODEL).folder) == weights(model)
    assert hub.served == sum(map(len, weights(model).values()))
    offsets = [offset for name, offset in hub.asked if name == "model-1.safetensors"]
    assert offsets == sorted(set(offsets))
    assert len(offsets) >= 7


def test_a_transfer_says_how_far_and_how_fast_it_is(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "REPORT_SECONDS", 0.05)
    hub.pause = 0.02
    hub.files = {"config.json": b"{}", "model.safetensors": b"x" * (2 << 20)}
    with capture_logs() as logs:
        fetch(URI, Part.MODEL)
    said = [one for one in logs if one["event"] == Fetching.EVENT]
    assert {one["uri"] for one in said} == {URI}
    assert {one["of_mib"] for one in said} == {2}
    assert 0 in {one["done_mib"] for one in said}
    assert all(one["mib_per_second"] >= 0 for one in said)
    assert any(one["mib_per_second"] > 0 for one in said)


def test_a_server_without_ranges_is_read_all_the_same(hub: Hub, model: dict[str, bytes]) -> None:
    hub.ranges = False
    hub.files = {"config.json": b"{}", "model.safetensors": model["model-2.safetensors"]}
    hub.refuse = []
    hub.cut_after = 0
    partial = folder_of(URI, Part.MODEL).with_suffix(".partial")
    assert not partial.exists()
    assert content(fetch(URI, Part.MODEL).folder) == hub.files


def test_a_passing_trouble_of_the_hub_is_waited_for(hub: Hub, model: dict[str, bytes]) -> None:
    hub.refuse = [503, 429, 500]
    assert content(fetch(URI, Part.MODEL).folder) == weights(model)


def test_a_damaged_transfer_is_repeated(hub: Hub, model: dict[str, bytes]) -> None:
    hub.damaged = 1
    assert content(fetch(URI, Part.MODEL).folder) == weights(model)


def test_a_source_that_stays_damaged_is_refused_and_leaves_no_folder(hub: Hub) -> None:
    hub.damaged = 99
    reason, says = reason_of()
    assert reason is Reason.DAMAGED
    assert "checksum" in says
    assert fetched(URI, Part.MODEL) is None


def test_a_file_that_is_longer_than_announced_is_refused(hub: Hub) -> None:
    hub.announced = {"config.json": 5}
    assert reason_of()[0] is Reason.DAMAGED


@pytest.mark.parametrize("name", ["../evil.json", "/tmp/evil.json", ".parts/x.json"])
def test_a_file_outside_the_folder_is_refused(hub: Hub, name: str) -> None:
    hub.files = {name: b"{}"}
    reason, says = reason_of()
    assert reason is Reason.DAMAGED
    assert name in says


def test_a_model_larger_than_the_disk_is_refused_before_a_byte_is_sent(hub: Hub) -> None:
    hub.announced = {"model-1.safetensors": 1 << 60}
    reason, says = reason_of()
    assert reason is Reason.DISK_FULL
    assert "MiB free; give the cache a larger volume" in says
    assert hub.served == 0


def test_a_gated_model_needs_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "s3cret"
    reason, says = reason_of()
    assert reason is Reason.DENIED
    assert "HF_TOKEN" in says
    monkeypatch.setenv("HF_TOKEN", "wrong")
    assert "does not let this token" in reason_of()[1]
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    assert fetch(URI, Part.MODEL).folder


def test_a_revision_that_is_not_there_is_named(hub: Hub) -> None:
    reason, says = reason_of("hf://org/model@v9")
    assert reason is Reason.NOT_FOUND
    assert "at revision v9; correct the URI" in says


def test_a_hub_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    reason, says = reason_of()
    assert reason is Reason.UNREACHABLE
    assert endpoint in says
    assert "check the network" in says


def start(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "flexmarl.cli", "fetch", URI, "--part", "model", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_killed_process_is_taken_over_from_where_it_was(
    hub: Hub, model: dict[str, bytes], cache: Path, tmp_path: Path
) -> None:
    hub.pause = 0.02
    first = start()
    partial = folder_of(URI, Part.MODEL).with_suffix(".partial")
    while sum(path.stat().st_size for path in partial.rglob("*")) < 200 * KIB:
        assert first.poll() is None
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    before = list(hub.asked)
    hub.pause = 0
    message = tmp_path / "message"
    second = start("--message", str(message))
    said, log = second.communicate(timeout=60)
    assert second.returncode == 0, log
    told = json.loads(message.read_text())
    assert (told["reason"], told["sources"]) == ("Fetched", 1)
    assert told["resumed"] >= 200 * KIB - 64 * KIB
    assert content(fetched(URI, Part.MODEL)) == weights(model)
    assert any(offset > 0 for _, offset in hub.asked[len(before) :])
    assert str(fetched(URI, Part.MODEL)) in said.decode()


def test_processes_that_fetch_at_once_share_one_transfer(
    hub: Hub, model: dict[str, bytes], cache: Path
) -> None:
    hub.pause = 0.01
    processes = [start() for _ in range(3)]
    for process in processes:
        log = process.communicate(timeout=120)[1]
        assert process.returncode == 0, log
    assert hub.served == sum(map(len, weights(model).values()))


def test_a_new_version_is_not_mixed_with_what_is_left_of_the_old(
    hub: Hub, model: dict[str, bytes]
) -> None:
    hub.damaged = 99
    reason_of()
    partial = folder_of(URI, Part.MODEL).with_suffix(".partial")
    assert any(path.is_file() for path in partial.rglob("*"))
    hub.damaged = 0
    hub.files = {name: bytes(reversed(data)) for name, data in model.items() if name != "x"}
    del hub.files["model-2.safetensors"]
    found = content(fetch(URI, Part.MODEL).folder)
    assert found == weights(hub.files)


def test_the_last_words_of_a_failure_are_one_line_of_json(
    hub: Hub, cache: Path, tmp_path: Path
) -> None:
    hub.refuse = [404]
    message = tmp_path / "message"
    process = start("--message", str(message))
    log = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 3
    told = json.loads(message.read_text())
    assert told["reason"] == "SourceNotFound"
    assert told["uri"] == URI
    assert told["retry"] is False
    assert told["message"] in log
    assert "Traceback" not in log


def test_a_trouble_that_may_pass_has_another_exit_code(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache.parent).write_text("no folder")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    message = tmp_path / "message"
    process = start("--message", str(message))
    process.communicate(timeout=60)
    assert process.returncode == 1
    told = json.loads(message.read_text())
    assert (told["reason"], told["retry"]) == ("CacheUnusable", True)
