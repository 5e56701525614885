"""Files of a run survive crashes, and resuming forgets what is played again."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flexmarl.orchestrator import checkpoint as checkpoints
from flexmarl.orchestrator.checkpoint import Checkpoint, Saved
from flexmarl.orchestrator.rundir import RunDir, lines
from flexmarl.runtime.errors import InvalidJobError


def steps_of(path: Path) -> list[int]:
    return [line["step"] for line in lines(path)]


def test_rewinding_forgets_the_step_and_all_after_it(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    for path in (files.metrics, files.evals, files.episodes):
        files.append(path, [{"step": number} for number in (0, 1, 2, 2, 3)])
    files.rewind(2, evaluated=False)
    assert [steps_of(path) for path in (files.metrics, files.evals, files.episodes)] == [[0, 1]] * 3


def test_rewinding_may_keep_the_evaluation_at_the_step(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    for path in (files.metrics, files.evals):
        files.append(path, [{"step": number} for number in (0, 1, 2, 3)])
    files.rewind(2, evaluated=True)
    assert steps_of(files.evals) == [0, 1, 2]
    assert steps_of(files.metrics) == [0, 1]


def test_rewinding_keeps_one_line_of_what_two_orchestrators_wrote(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    for path in (files.metrics, files.evals):
        files.append(path, [{"step": number} for number in (0, 1, 2, 1, 3)])
    shown = [{"step": 1, "index": index, "episode": 0} for index in (0, 1, 0)]
    files.append(files.episodes, shown)
    files.rewind(3, evaluated=True)
    assert steps_of(files.metrics) == [0, 1, 2]
    assert steps_of(files.evals) == [0, 1, 2, 3]
    assert lines(files.episodes) == shown[:2]


def test_lines_are_on_the_disk_before_anything_goes_on_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is on another machine and keeps what it is told; this one may lose power."""
    synced: dict[int, int] = {}
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        fsync(descriptor)
        seen = os.fstat(descriptor)
        synced[seen.st_ino] = seen.st_size

    files = RunDir(tmp_path)
    monkeypatch.setattr(os, "fsync", recorded)
    for path in (files.metrics, files.evals):
        for step in (0, 1):
            files.append(path, [{"step": step}])
            assert synced[path.stat().st_ino] == path.stat().st_size
    assert tmp_path.stat().st_ino in synced  # where the names are


def test_episodes_of_a_step_that_was_not_written_down_are_forgotten(tmp_path: Path) -> None:
    """Its writer was killed before the metrics; whoever takes over writes both."""
    files = RunDir(tmp_path)
    shown = [{"step": step, "index": 0, "episode": 0} for step in (0, 1, 2)]
    files.append(files.metrics, [{"step": 0}, {"step": 1}])
    files.append(files.episodes, shown)
    files.rewind(2, evaluated=True, trained=True)
    assert steps_of(files.metrics) == steps_of(files.episodes) == [0, 1]


def test_a_torn_last_line_is_not_read_and_goes_on_rewinding(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    files.append(files.metrics, [{"step": 0}, {"step": 1}])
    with files.metrics.open("a") as file:
        file.write('{"step": 2, "ti')
    assert steps_of(files.metrics) == [0, 1]
    files.rewind(5, evaluated=True)
    files.append(files.metrics, [{"step": 2}])
    assert steps_of(files.metrics) == [0, 1, 2]


def test_progress_is_not_overwritten_by_an_older_one(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    files.progress(2, {"step": 2})
    files.progress(1, {"step": 1})
    assert json.loads((tmp_path / "progress.json").read_text()) == {"step": 2}


def cursor(step: int) -> dict[str, Any]:
    return {"position": step * 4, "records": 10}


def save(root: Path, step: int, lineage: tuple[str, ...] = ("uid",), incarnation: int = 3) -> Path:
    checkpoint = begun(root, step, lineage)
    checkpoints.finish(
        checkpoint,
        {"p0": Saved(step, "sum", ("model.safetensors",))},
        cursor(step),
        incarnation=incarnation,
    )
    return checkpoint.directory


def begun(root: Path, step: int, lineage: tuple[str, ...] = ("uid",)) -> Checkpoint:
    """What the trainers have saved."""
    checkpoint = Checkpoint(checkpoints.directory_of(root, step), step, lineage)
    checkpoints.begin(checkpoint)
    (checkpoint.staging / "p0").mkdir(exist_ok=True)
    (checkpoint.staging / "p0" / "model.safetensors").write_bytes(b"x" * step)
    return checkpoint


def test_a_checkpoint_that_is_made_again_stays_complete_until_the_new_one_is(
    tmp_path: Path,
) -> None:
    directory = save(tmp_path, 5, ("first",))
    again = begun(tmp_path, 5, ("first", "second"))
    assert checkpoints.read(directory, ["p0"], cursor).lineage == ("first",)
    (again.staging / "manifest.json").write_text("{}")  # of an attempt that was cut off
    assert checkpoints.complete_ones(tmp_path, ["first"]) == [directory]
    save(tmp_path, 5, ("first", "second"))
    assert checkpoints.read(directory, ["p0"], cursor).lineage == ("first", "second")
    assert list(tmp_path.iterdir()) == [directory]


def test_a_checkpoint_is_read_back(tmp_path: Path) -> None:
    directory = save(tmp_path, 5, ("first", "second"))
    found = checkpoints.read(directory, ["p0"], cursor)
    assert found == Checkpoint(directory, 5, ("first", "second"), checksums={"p0": "sum"})
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["incarnation"] == 3
    assert manifest["policies"] == {
        "p0": {
            "version": 5,
            "checksum": "sum",
            "files": [{"path": "model.safetensors", "bytes": 5}],
        }
    }


def test_an_incomplete_or_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    directory = save(tmp_path, 5)
    with pytest.raises(InvalidJobError, match="has no policy 'p1'"):
        checkpoints.read(directory, ["p0", "p1"], cursor)
    with pytest.raises(InvalidJobError, match="records was 10 and is 11"):
        checkpoints.read(directory, ["p0"], lambda step: cursor(step) | {"records": 11})
    (directory / "p0" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(InvalidJobError, match=r"model\.safetensors is not the file of 5 bytes"):
        checkpoints.read(directory, ["p0"], cursor)
    (directory / "manifest.json").unlink()
    with pytest.raises(InvalidJobError, match="holds no complete checkpoint"):
        checkpoints.read(directory, ["p0"], cursor)


def test_only_the_newest_of_the_own_lineage_are_kept(tmp_path: Path) -> None:
    foreign = save(tmp_path, 9, ("other",))
    for step, lineage in ((2, ("a",)), (8, ("a",)), (3, ("a", "b")), (4, ("a", "b"))):
        save(tmp_path, step, lineage)
    gone = checkpoints.prune(tmp_path, 2, ("a", "b"))
    assert [path.name for path in gone] == ["step-00000002", "step-00000008"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000003",
        "step-00000004",
        foreign.name,
    ]


def test_what_is_newest_no_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks are set back; and a job that fell back abandoned what it wrote before."""
    written = [
        (("a",), 1, 8),
        (("a",), 1, 9),
        (("a",), 2, 3),
        (("a", "b"), 1, 2),
        (("a", "b"), 1, 4),
    ]
    for age, (lineage, incarnation, step) in enumerate(written):
        monkeypatch.setattr("time.time", lambda age=age: -float(age))
        save(tmp_path, step, lineage, incarnation)
    found = [path.name for path in checkpoints.complete_ones(tmp_path, ("a", "b"))]
    assert found == [f"step-{step:08d}" for _, _, step in written]
    gone = checkpoints.prune(tmp_path, 1, ("a", "b"))
    assert [path.name for path in gone] == found[:-1]


def test_progress_of_a_later_incarnation_is_not_overwritten_by_an_earlier_one(
    tmp_path: Path,
) -> None:
    """Which goes on for a moment, and learns then that it was replaced."""
    first, second = RunDir(tmp_path), RunDir(tmp_path)
    first.progress(1, {"step": 0})
    first.begin(1)
    second.progress(1, {"step": 1})
    second.begin(2)
    second.progress(2, {"step": 9})
    first.progress(2, {"step": 1})
    assert json.loads((tmp_path / "progress.json").read_text()) == {"step": 9}
