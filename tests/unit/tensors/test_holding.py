import os
import subprocess
import sys
from pathlib import Path

import pytest

from flexmarl.runtime.errors import InvalidRequestError
from flexmarl.tensors.holding import Hold, remove_leftovers, remove_unheld, set_names
from flexmarl.tensors.layout import Layout, TensorSpec
from flexmarl.tensors.sets import TensorSet

LAYOUT = Layout({"weights/w": TensorSpec("U8", (4,))})


def make(shm_dir: Path, name: str) -> TensorSet:
    tensor_set = TensorSet.create(shm_dir, name, LAYOUT)
    tensor_set.write(0, {"weights/w": b"1234"})
    return tensor_set


def test_sets_in_use_stay_and_leftovers_go(tmp_path: Path) -> None:
    living, dead = make(tmp_path, "living.solver"), make(tmp_path, "dead.solver")
    dead.close()
    (tmp_path / "flexmarl-older.solver.new").write_bytes(b"killed while it was made")
    (tmp_path / "someone-elses").touch()
    assert remove_leftovers(tmp_path, keep="mine") == ["dead", "older"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "flexmarl-living.job.lock",
        "flexmarl-living.solver",
        "someone-elses",
    ]
    living.close()
    assert remove_leftovers(tmp_path, keep="living") == []
    assert set_names(tmp_path, "living") == ["living.solver"]
    assert remove_unheld(tmp_path, "living")
    assert [path.name for path in tmp_path.iterdir()] == ["someone-elses"]


def test_a_reader_or_a_bare_hold_keeps_the_sets_and_death_lets_go(tmp_path: Path) -> None:
    make(tmp_path, "job.solver").close()
    with TensorSet.open(tmp_path, "job.solver"):
        assert not remove_unheld(tmp_path, "job")
    code = (
        "import sys, pathlib; from flexmarl.tensors.holding import Hold;"
        "hold = Hold(pathlib.Path(sys.argv[1]), 'job'); print('held', flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert not remove_unheld(tmp_path, "job")
        holder.kill()
    assert remove_unheld(tmp_path, "job")
    assert os.listdir(tmp_path) == []


def test_a_hold_taken_after_a_removal_counts_for_the_new_file(tmp_path: Path) -> None:
    first = Hold(tmp_path, "job")
    first.release()
    first.release()
    assert remove_unheld(tmp_path, "job")
    second = Hold(tmp_path, "job")
    assert not remove_unheld(tmp_path, "job")
    second.release()


def test_a_uid_that_could_name_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError):
        Hold(tmp_path, "a.b/c")
