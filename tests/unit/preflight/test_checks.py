"""What a pod finds out about itself."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.contracts.preparation import (
    MOST_BYTES,
    Found,
    Kind,
    Preparation,
    Report,
    Source,
    State,
)
from flexmarl.preflight import checks
from flexmarl.preflight.preparing import prepare

MIB = 1 << 20
STATES = [
    State(policy="solver", parameter_bytes=12, parameters=MIB),
    State(policy="verifier", parameter_bytes=14, parameters=2 * MIB),
]
PARAMETERS = {one.policy: one.parameters for one in STATES}


@given(
    st.lists(
        st.builds(
            Found, reason=st.just("X"), message=st.text(max_size=2000), kind=st.sampled_from(Kind)
        ),
        max_size=20,
    )
)
def test_a_report_fits_into_what_the_kubelet_keeps(findings: list[Found]) -> None:
    text = Report(findings=findings).text()
    assert len(text.encode()) <= MOST_BYTES
    read = Report.read(text)
    assert read is not None
    assert [one.kind for one in read.findings] == [
        one.kind for one in findings[: len(read.findings)]
    ]
    assert bool(read.findings) == bool(findings)


@pytest.mark.parametrize(
    "text", ["", "Traceback (most recent call last):", "[]", "{}", '{"findings": 1}']
)
def test_other_last_words_are_no_report(text: str) -> None:
    assert Report.read(text) is None


def test_a_plan_is_read_as_it_was_written() -> None:
    source = Source(uri="hf://a/b", part="model", variables="SECRET0_")
    plan = Preparation(code=source, sources=[source], states=STATES, together=True, gpus=2)
    assert Preparation.read(plan.text()) == plan
    assert Preparation.read(Preparation().text()) == Preparation()


def test_shared_memory_holds_two_versions_of_the_largest_policy() -> None:
    def found(shm: int, *, together: bool = False) -> list[Found]:
        return [*checks.states(STATES, PARAMETERS, together=together, shm=shm, run=0)]

    assert found(56 * MIB) == []
    (small,) = found(56 * MIB - 1)
    assert small.kind is Kind.HOPELESS
    assert small.reason == "SharedMemoryTooSmall"
    assert "the state of verifier takes 56Mi" in small.message
    assert "spec.shm.size of at least 120Mi" in small.message
    assert found(80 * MIB, together=True) == []
    (both,) = found(80 * MIB - 1, together=True)
    assert "the states of solver, verifier take 80Mi" in both.message


def test_a_volume_that_holds_no_checkpoint_is_told() -> None:
    (small,) = checks.states(STATES, PARAMETERS, together=False, shm=0, run=27 * MIB)
    assert (small.reason, small.kind) == ("VolumeFull", Kind.PASSING)
    assert "27Mi free, a checkpoint of verifier takes 28Mi" in small.message


def test_parameters_are_counted_from_the_heads_of_files(tmp_path: Path) -> None:
    def write(name: str, tensors: dict[str, list[int]]) -> None:
        head: dict[str, object] = {key: {"shape": shape} for key, shape in tensors.items()}
        raw = json.dumps(head | {"__metadata__": {"format": "pt"}}).encode()
        (tmp_path / name).write_bytes(len(raw).to_bytes(8, "little") + raw)

    write("model-1.safetensors", {"embed": [5, 4], "scale": []})
    write("model-2.safetensors", {"lm_head.weight": [5, 4]})
    assert checks.parameters_in(tmp_path) == 41
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    assert checks.parameters_in(tmp_path) == 21
    (tmp_path / "model-1.safetensors").write_bytes(b"\xff" * 9)
    assert checks.parameters_in(tmp_path) == 0


def test_devices_that_cannot_be_seen_are_a_warning(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert [*checks.gpus(1, "nvidia.com/gpu", tmp_path)] == []
    (found,) = checks.gpus(2, "nvidia.com/gpu", tmp_path)
    assert found.kind is Kind.WARNING
    assert "2 nvidia.com/gpu given, 1 devices" in found.message
    assert [*checks.gpus(2, "example.com/npu", tmp_path)] == []
    assert [*checks.gpus(0, "nvidia.com/gpu", tmp_path)] == []


def test_a_volume_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wanted = [str(tmp_path / "new"), str(tmp_path / "file")]
    (found,) = checks.volumes(wanted)
    assert found.reason == "VolumeNotWritable"
    assert str(tmp_path / "file") in found.message
    assert os.listdir(tmp_path / "new") == []


def test_pods_that_look_at_one_volume_at_once_do_not_see_each_other(tmp_path: Path) -> None:
    """Their processes have the same number."""

    def look(_: int) -> list[Found]:
        return [*checks.volumes([str(tmp_path)])]

    with ThreadPoolExecutor(8) as pods:
        assert [found for said in pods.map(look, range(400)) for found in said] == []
    assert os.listdir(tmp_path) == []


def test_files_are_laid_out_as_they_were_at_home(tmp_path: Path) -> None:
    from flexmarl.fetch.archive import ARCHIVE, pack

    source, into = tmp_path / "map", tmp_path / "files"
    source.mkdir()
    (source / ARCHIVE).write_bytes(pack({"data/tasks.jsonl": b"{}\n", "team.py": b"x = 1\n"}))
    plan = Preparation(files=str(source), archive=ARCHIVE, into=str(into), writable=[str(into)])
    assert prepare(plan).findings == []
    assert (into / "data/tasks.jsonl").read_bytes() == b"{}\n"
    assert (into / "team.py").read_bytes() == b"x = 1\n"


def test_entries_of_a_config_map_are_copied_without_the_kubelets_links(tmp_path: Path) -> None:
    source, into = tmp_path / "map", tmp_path / "files"
    (source / "..data").mkdir(parents=True)
    (source / "..data" / "tasks.jsonl").write_text("{}\n")
    (source / "tasks.jsonl").symlink_to("..data/tasks.jsonl")
    prepare(Preparation(files=str(source), into=str(into), writable=[str(into)]))
    assert [path.name for path in into.iterdir()] == ["tasks.jsonl"]


def test_a_claim_without_what_is_wanted_is_hopeless() -> None:
    (found,) = prepare(Preparation(mounted=["pvc://models/llama"])).findings
    assert (found.reason, found.kind, found.fetching) == ("SourceNotFound", Kind.HOPELESS, True)


def test_a_damaged_archive_is_hopeless(tmp_path: Path) -> None:
    (tmp_path / "files.tar.gz").write_bytes(b"no")
    plan = Preparation(files=str(tmp_path), archive="files.tar.gz", into=str(tmp_path / "into"))
    (found,) = prepare(plan).findings
    assert (found.reason, found.kind) == ("SourceDamaged", Kind.HOPELESS)
