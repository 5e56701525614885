"""Tensor sets in shared memory: versions are whole or refused, whatever dies when."""

import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.runtime.errors import (
    CorruptError,
    InvalidRequestError,
    JobFailedError,
    NotFoundError,
    StalePolicyError,
    UnavailableError,
)
from flexmarl.tensors.holding import remove_unheld
from flexmarl.tensors.layout import Layout, TensorSpec
from flexmarl.tensors.sets import TensorSet

LAYOUT = Layout(
    {
        "weights/w": TensorSpec("F32", (3, 2)),
        "weights/none": TensorSpec("F64", (0, 4)),
        "weights/scalar": TensorSpec("BF16", ()),
        "optimizer/m": TensorSpec("U8", (5,)),
    }
)


def filled(value: int) -> dict[str, bytes]:
    return {name: bytes([value]) * spec.nbytes for name, spec in LAYOUT.tensors.items()}


def read(tensor_set: TensorSet, version: int | None = None) -> dict[str, bytes]:
    with tensor_set.reading(version) as views:
        return {name: bytes(view) for name, view in views.items()}


def read_while_two_are_written(reader: TensorSet, writer: TensorSet) -> None:
    with reader.reading():
        writer.write(2, filled(3))
        writer.write(3, filled(4))


def write_and_fail(writer: TensorSet, version: int, error: type[BaseException]) -> None:
    with writer.writing(version) as views:
        views["weights/w"][:12] = b"x" * 12
        raise error


def test_what_was_written_is_read_with_its_version_and_metadata(tmp_path: Path) -> None:
    with TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer:
        assert writer.committed() is None
        commit = writer.write(7, filled(1), {"rng": [1, 2], "lr": 0.5})
        with TensorSet.open(tmp_path, "job.solver") as reader:
            assert reader.committed() == commit == writer.verify()
            assert (commit.version, commit.metadata) == (7, {"rng": [1, 2], "lr": 0.5})
            assert read(reader, 7) == filled(1)


def test_the_checksum_covers_the_weights_alone(tmp_path: Path) -> None:
    with TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer:
        first = writer.write(0, filled(1))
        assert writer.write(1, filled(1) | {"optimizer/m": b"54321"}).checksum == first.checksum
        changed = filled(1) | {"weights/scalar": b"\2\1"}
        assert writer.write(2, changed).checksum != first.checksum


def test_nothing_committed_and_another_version_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        TensorSet.open(tmp_path, "job.solver")
    with TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer:
        with pytest.raises(NotFoundError, match="no committed version"):
            read(writer)
        writer.write(3, filled(3))
        with pytest.raises(StalePolicyError, match="at version 3, not 4"):
            read(writer, 4)


def test_a_reader_keeps_its_version_through_one_commit_and_is_told_of_the_second(
    tmp_path: Path,
) -> None:
    with TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer:
        writer.write(0, filled(1))
        with TensorSet.open(tmp_path, "job.solver") as reader:
            with reader.reading(0) as views:
                writer.write(1, filled(2))
                assert bytes(views["optimizer/m"]) == b"\1" * 5
            with pytest.raises(StalePolicyError, match="overwritten"):
                read_while_two_are_written(reader, writer)


def test_an_exception_while_writing_leaves_the_last_version(tmp_path: Path) -> None:
    with TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer:
        writer.write(0, filled(1))
        with pytest.raises(ZeroDivisionError):
            write_and_fail(writer, 1, ZeroDivisionError)
        assert read(writer, 0) == filled(1)
        writer.write(1, filled(2))
        assert read(writer, 1) == filled(2)


def test_tensors_that_do_not_fit_the_layout_are_named(tmp_path: Path) -> None:
    with TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer:
        tensors = filled(1) | {"extra": b""}
        del tensors["weights/w"]
        with pytest.raises(InvalidRequestError, match=r"missing \['weights/w'\], .*\['extra'\]"):
            writer.write(0, tensors)
        with pytest.raises(InvalidRequestError, match=r"'weights/w': 1 bytes given, 24 needed"):
            writer.write(0, filled(1) | {"weights/w": b"1"})
        with pytest.raises(InvalidRequestError, match="metadata of"):
            writer.write(0, filled(1), {"long": "x" * (1 << 20)})
        assert writer.committed() is None


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    writer = TensorSet.create(tmp_path, "job.solver", LAYOUT)
    with pytest.raises(UnavailableError, match="another process writes"):
        TensorSet.create(tmp_path, "job.solver", LAYOUT)
    with writer.writing(0) as views:
        kept = views["weights/w"]  # a view in use keeps the memory, not the lock
    writer.close()
    with TensorSet.create(tmp_path, "job.solver", LAYOUT) as again:
        assert again.committed() is not None
    assert len(kept) == 24


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    with (
        TensorSet.create(tmp_path, "job.solver", LAYOUT),
        TensorSet.open(tmp_path, "job.solver") as reader,
        pytest.raises(InvalidRequestError, match="reading only"),
    ):
        reader.write(0, filled(1))


def test_another_layout_replaces_the_set_and_a_reader_can_tell(tmp_path: Path) -> None:
    with TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer:
        writer.write(0, filled(1))
    with TensorSet.open(tmp_path, "job.solver") as reader:
        assert not reader.replaced
        with TensorSet.create(tmp_path, "job.solver", LAYOUT.below("weights/")) as other:
            assert other.committed() is None
            assert reader.replaced
            assert read(reader, 0) == filled(1)
    assert [path.name for path in tmp_path.iterdir() if "lock" not in path.name] == [
        "flexmarl-job.solver"
    ]


def test_a_file_that_is_no_set_is_replaced_by_a_writer_and_refused_by_a_reader(
    tmp_path: Path,
) -> None:
    for rubbish in (b"", b"x" * 100, b"x" * 10000):
        (tmp_path / "flexmarl-job.solver").write_bytes(rubbish)
        with pytest.raises(CorruptError, match="is no tensor set"):
            TensorSet.open(tmp_path, "job.solver")
        with TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer:
            assert writer.committed() is None


def test_a_flipped_byte_of_the_weights_or_the_record_is_found(tmp_path: Path) -> None:
    with TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer:
        commit = writer.write(0, filled(1), {"marker": "here"})
        path, content = writer.path, writer.path.read_bytes()
        for pattern in (filled(1)["weights/w"], b"here", commit.checksum.encode()):
            position = content.index(pattern)
            flipped = bytes([content[position] ^ 64])
            with path.open("r+b") as file:
                file.seek(position)
                file.write(flipped)
            with pytest.raises(CorruptError):
                writer.verify()
            with path.open("r+b") as file:
                file.write(content)
        writer.verify()


def test_full_shared_memory_is_a_clear_error_at_creation() -> None:
    shm_dir, uid = Path("/dev/shm"), f"test{os.getpid()}"
    free = os.statvfs(shm_dir)
    huge = Layout({"w": TensorSpec("U8", (free.f_blocks * free.f_frsize,))})  # twice: too much
    with pytest.raises(JobFailedError, match=r"needs .* MiB in /dev/shm, which has .* MiB free"):
        TensorSet.create(shm_dir, f"{uid}.big", huge)
    left = list(shm_dir.glob(f"flexmarl-{uid}.big*"))
    assert remove_unheld(shm_dir, uid)
    assert left == []


@given(st.text(max_size=12))
def test_a_name_is_never_a_path(name: str) -> None:
    if "/" in name or name.count(".") != 1:
        with pytest.raises(InvalidRequestError, match="no name of a tensor set"):
            TensorSet.open(Path("/nonexistent"), name)


# Writes version after version for ever; every byte of a version is the version modulo 251.
WRITER = """
import sys
from pathlib import Path
from flexmarl.tensors.layout import Layout, TensorSpec
from flexmarl.tensors.sets import TensorSet

layout = Layout({f"weights/{i}": TensorSpec("U8", (size,)) for i, size in enumerate(%r)})
writer = TensorSet.create(Path(sys.argv[1]), "job.solver", layout)
commit = writer.committed()
version = commit.version if commit else 0
if commit:
    writer.verify()
print("ready", flush=True)
while True:
    version += 1
    value = bytes([version %% 251])
    tensors = {name: value * spec.nbytes for name, spec in layout.tensors.items()}
    writer.write(version, tensors, {"version": version, "padding": "x" * (version %% 5000)})
"""
SIZES = (1, 4096, 70_000, 300_001)


def spawn_writer(shm_dir: Path) -> subprocess.Popen[str]:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER % (SIZES,), str(shm_dir)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    return writer


def check_whole(reader: TensorSet) -> int:
    commit = reader.verify()
    with reader.reading(commit.version) as views:
        found = {bytes(view[i : i + 1])[0] for view in views.values() for i in (0, len(view) - 1)}
        whole = all(bytes(view) == bytes([view[0]]) * len(view) for view in views.values())
    assert (found, whole) == ({commit.version % 251}, True)
    assert commit.metadata["version"] == commit.version
    return commit.version


def test_kill_9_of_the_writer_at_any_moment_leaves_a_whole_version(tmp_path: Path) -> None:
    seen, chance = 0, random.Random(1)
    for _ in range(8):
        writer = spawn_writer(tmp_path)
        assert writer.stdout is not None
        time.sleep(chance.random() * 0.05)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        with TensorSet.open(tmp_path, "job.solver") as reader:
            if reader.committed() is not None:
                version = check_whole(reader)
                assert version >= seen
                seen = version
    assert seen > 0


def test_stopped_in_the_middle_of_a_write_the_next_writer_goes_on(tmp_path: Path) -> None:
    # What memory looks like when the writer dies between any two of its stores.
    with TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer:
        writer.write(0, filled(1))
        writer.write(1, filled(2))
        with pytest.raises(KeyboardInterrupt):
            write_and_fail(writer, 2, KeyboardInterrupt)
    with TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer:
        assert read(writer, 1) == filled(2)
        writer.write(2, filled(3))
        assert read(writer, 2) == filled(3)


def test_readers_beside_a_busy_writer_see_whole_versions_or_are_told(tmp_path: Path) -> None:
    writer = spawn_writer(tmp_path)
    assert writer.stdout is not None
    outcomes = {"whole": 0, "stale": 0}
    with TensorSet.open(tmp_path, "job.solver") as reader:
        while reader.committed() is None:
            assert writer.poll() is None
            time.sleep(0.01)

    def look() -> None:
        with TensorSet.open(tmp_path, "job.solver") as reader:
            for _ in range(150):
                try:
                    check_whole(reader)
                except (StalePolicyError, NotFoundError, UnavailableError):
                    outcomes["stale"] += 1
                else:
                    outcomes["whole"] += 1

    readers = [threading.Thread(target=look) for _ in range(2)]
    for thread in readers:
        thread.start()
    for thread in readers:
        thread.join()
    writer.kill()
    writer.wait()
    writer.stdout.close()
    assert outcomes["whole"] + outcomes["stale"] == 300  # no thread died of a torn version
    with TensorSet.open(tmp_path, "job.solver") as reader:
        check_whole(reader)


def test_the_header_is_what_the_format_says(tmp_path: Path) -> None:
    with TensorSet.create(tmp_path, "job.solver", LAYOUT) as writer:
        writer.write(0, filled(1))
        content = writer.path.read_bytes()
    assert content[:16] == b"FLEXMARL-TENSORS"
    assert struct.unpack_from("=3Q", content, 16) == (1, 1, 1)  # format, sequence, writing
