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


def test_a_file_that_a_link_leads_to_is_packed_under_the_name_that_the_job_gives(
    tmp_path: Path,
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "tasks.jsonl").write_text("{}")
    (tmp_path / "real" / "ca.pem").write_text("certificate")
    (tmp_path / "real" / "flow.py").write_text("code")
    for name, place in (("tasks.jsonl", "real/tasks.jsonl"), ("ca.pem", "real/ca.pem"),
                        ("team", "real"), ("data", "real")):  # fmt: skip
        (tmp_path / name).symlink_to(place)
    flow = {"workflow": {"entrypoint": "flow:Flow"}}
    code = {"path": "team"}
    for given, names in (
        ({"data": {"uri": "file://tasks.jsonl"}}, {"tasks.jsonl"}),
        ({"data": {"uri": "file://./data/tasks.jsonl"}}, {"data/tasks.jsonl"}),
        ({"store": {"url": "rediss://x:1", "caFile": "ca.pem"}}, {"ca.pem"}),
        ({"code": code, **flow}, {"team/ca.pem", "team/flow.py", "team/tasks.jsonl"}),
    ):
        found = packed(tmp_path, **{"data": {"uri": "gym://chain_sum"}, **given})
        assert unpacked(found, tmp_path / "pod" / str(len(names))) >= names


def unpacked(found: Packed, folder: Path) -> set[str]:
    """The files as a pod has them."""
    entries = content(found)
    archive = found.job["metadata"].get("annotations", {}).get(PACKED)
    if archive is None:
        return set(entries)
    folder.parent.mkdir(exist_ok=True)
    folder.with_suffix(".tar.gz").write_bytes(entries[archive])
    unpack(folder.with_suffix(".tar.gz"), folder)
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_code_is_packed_through_links_to_folders_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("job/shared/words.py", "job/code/flow.py", "elsewhere/large.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "job/code/team").symlink_to("../shared")
    (tmp_path / "job/shared/round").symlink_to("../code")
    (tmp_path / "job/code/self").symlink_to(".")
    (tmp_path / "job/code/large").symlink_to("../../elsewhere")
    (tmp_path / "job/code/broken.py").symlink_to("nothing.py")
    spec = {"data": {"uri": "gym://chain_sum"}, "workflow": {"entrypoint": "flow:Flow"}}
    found = packed(tmp_path / "job", **spec, code={"path": "code"})
    assert unpacked(found, tmp_path / "pod") == {"code/flow.py", "code/team/words.py"}
    assert "code/large leads out of the folder" in capsys.readouterr().err


def test_a_way_through_a_folder_that_pods_may_not_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "tasks.jsonl").write_text("{}")
    with pytest.raises(CommandError, match="without \\.\\."):
        packed(tmp_path, data={"uri": "file://data/../tasks.jsonl"})


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
