"""What goes to a cluster along with a job."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.runs import job

from flexmarl.cli.console import INVALID, CommandError
from flexmarl.cli.pack import MOST_BYTES, Packed, pack
from flexmarl.contracts.documents import dump
from flexmarl.contracts.preparation import PACKED
from flexmarl.contracts.reading import read_job
from flexmarl.fetch.archive import unpack


def packed(folder: Path, **spec: Any) -> Packed:
    document = job()
    document["spec"].pop("eval", None)
    document["spec"] |= spec
    path = folder / "job.yaml"
    path.write_text(dump(document))
    return pack(read_job(path), "team")


def content(found: Packed) -> dict[str, bytes]:
    assert found.config_map is not None
    return {key: base64.b64decode(data) for key, data in found.config_map["binaryData"].items()}


def test_a_job_without_files_goes_alone(tmp_path: Path) -> None:
    found = packed(tmp_path, data={"uri": "gym://chain_sum"})
    assert found.config_map is None
    assert "code" not in found.job["spec"]
    assert found.job["metadata"]["namespace"] == "team"


def test_files_in_the_jobs_own_folder_are_entries_under_their_names(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("{}\n")
    found = packed(tmp_path, data={"uri": "file://tasks.jsonl"})
    assert content(found) == {"tasks.jsonl": b"{}\n"}
    assert found.config_map is not None
    name = found.config_map["metadata"]["name"]
    assert found.job["spec"]["code"] == {"configMap": name}
    assert PACKED not in found.job["metadata"].get("annotations", {})


def test_files_in_folders_are_packed_and_found_again(tmp_path: Path) -> None:
    for name in ("data/tasks.jsonl", "team/flow.py", "team/words.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "team" / "__pycache__").mkdir()
    (tmp_path / "team" / "__pycache__" / "flow.pyc").write_bytes(b"x")
    (tmp_path / "team" / ".secret").write_text("x")
    found = packed(
        tmp_path,
        data={"uri": "file://data/tasks.jsonl"},
        code={"path": "team"},
        workflow={"entrypoint": "flow:Flow"},
    )
    archive = found.job["metadata"]["annotations"][PACKED]
    (tmp_path / "archive").write_bytes(content(found)[archive])
    assert unpack(tmp_path / "archive", tmp_path / "pod") == 3
    assert (tmp_path / "pod" / "team" / "flow.py").read_text() == "team/flow.py"
    assert found.job["spec"]["code"]["path"] == "team"


def test_the_name_changes_with_the_files_and_with_nothing_else(tmp_path: Path) -> None:
    def name(text: str) -> str:
        (tmp_path / "tasks.jsonl").write_text(text)
        found = packed(tmp_path, data={"uri": "file://tasks.jsonl"}).config_map
        assert found is not None
        return str(found["metadata"]["name"])

    first = name("{}\n")
    assert name("{}\n") == first
    assert name('{"a": 1}\n') != first


def test_what_is_too_large_is_told_with_what_to_do(tmp_path: Path) -> None:
    import random

    noise = random.Random(1).randbytes(MOST_BYTES + 1).hex()
    (tmp_path / "tasks.jsonl").write_text(noise)
    with pytest.raises(CommandError, match=r"tasks.jsonl \(\d+ KiB\).*s3:// or pvc://") as error:
        packed(tmp_path, data={"uri": "file://tasks.jsonl"})
    assert error.value.exit_code == INVALID


@pytest.mark.parametrize("uri", ["file://../tasks.jsonl", "file://link.jsonl"])
def test_a_file_outside_the_folder_is_refused(tmp_path: Path, uri: str) -> None:
    (tmp_path / "tasks.jsonl").write_text("{}")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "link.jsonl").symlink_to(tmp_path / "tasks.jsonl")
    with pytest.raises(CommandError, match="outside the folder of the job file"):
        packed(tmp_path / "job", data={"uri": uri})


def test_a_model_of_this_machine_is_refused(tmp_path: Path) -> None:
    document = job()
    (tmp_path / "train.jsonl").touch()
    (tmp_path / "held-out.jsonl").touch()
    document["spec"]["policies"][0]["model"] = {"uri": "file://model"}
    (tmp_path / "job.yaml").write_text(dump(document))
    with pytest.raises(CommandError, match="on a cluster a model comes by hf://, s3:// or pvc://"):
        pack(read_job(tmp_path / "job.yaml"), "team")


def test_a_config_map_of_the_users_own_is_left_as_it_is(tmp_path: Path) -> None:
    found = packed(tmp_path, data={"uri": "file://x.jsonl"}, code={"configMap": "mine"})
    assert found.config_map is None
    assert found.job["spec"]["code"] == {"configMap": "mine"}


def test_what_is_packed_is_a_job_that_pods_can_read(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("{}\n")
    found = packed(tmp_path, data={"uri": "file://tasks.jsonl"})
    (tmp_path / "applied.yaml").write_text(dump(found.job))
    assert read_job(tmp_path / "applied.yaml").job.spec.code is not None
