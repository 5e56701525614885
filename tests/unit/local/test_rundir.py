import json
from pathlib import Path

import pytest

from flexmarl.local.rundir import RunLock, add_submission, note_failure, reopen, says_complete
from flexmarl.runtime.errors import JobFailedError


def test_a_second_run_in_the_same_directory_is_refused_with_the_process_that_holds_it(
    tmp_path: Path,
) -> None:
    lock = RunLock(tmp_path)
    with pytest.raises(JobFailedError, match=r"another `flexmarl run` \(process \d+\) works on"):
        RunLock(tmp_path)
    lock.release()
    assert list(tmp_path.iterdir()) == []
    RunLock(tmp_path).release()


def test_submissions_of_a_run_are_kept_in_order(tmp_path: Path) -> None:
    assert add_submission(tmp_path, "one") == []
    assert add_submission(tmp_path, "two") == ["one"]
    assert add_submission(tmp_path, "three") == ["one", "two"]


def test_a_failure_is_noted_unless_the_end_is_known(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    note_failure(tmp_path, "trainer-0 died")
    assert json.loads(path.read_text()) == {"phase": "Failed", "message": "trainer-0 died"}
    path.write_text(json.dumps({"phase": "Running", "step": 3}))
    note_failure(tmp_path, "trainer-0 died")
    assert json.loads(path.read_text()) == {
        "phase": "Failed",
        "step": 3,
        "message": "trainer-0 died",
    }
    for phase in ("Complete", "Failed"):
        path.write_text(json.dumps({"phase": phase}))
        note_failure(tmp_path, "later")
        assert json.loads(path.read_text()) == {"phase": phase}


def test_a_run_is_complete_when_the_orchestrator_has_said_so_until_it_goes_on(
    tmp_path: Path,
) -> None:
    assert not says_complete(tmp_path)
    path = tmp_path / "progress.json"
    for phase in ("Running", "Failed", "Complete"):
        path.write_text(json.dumps({"phase": phase, "step": 4, "message": "why"}))
        assert says_complete(tmp_path) == (phase == "Complete")
    reopen(tmp_path)
    assert not says_complete(tmp_path)
    assert json.loads(path.read_text()) == {"phase": "Starting", "step": 4, "message": ""}
    note_failure(tmp_path, "trainer-0 died")
    assert json.loads(path.read_text())["phase"] == "Failed"
