import fcntl
from pathlib import Path

import pytest
from tests.unit.cli.runs import job, progress, write_job, write_run

from flexmarl.cli.console import CommandError
from flexmarl.cli.rundir import changes, keep_job, prepare
from flexmarl.contracts.reading import JobFile, load_job, read_job


@pytest.fixture
def file(tmp_path: Path) -> JobFile:
    return read_job(write_job(tmp_path))


def kept(root: Path, file: JobFile, phase: str, step: int) -> Path:
    root.mkdir()
    keep_job(root, file)
    progress(root, phase, step)
    return root


def test_a_new_run_gets_a_folder(tmp_path: Path, file: JobFile) -> None:
    root = tmp_path / "runs" / "new"
    assert prepare(root, file, resume=False, replace=False)
    assert root.is_dir()


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("Complete", "a finished run. --replace"),
        ("Running", "unfinished run (2 of 4 steps). --res"),
    ],
)
def test_a_run_that_is_there_is_not_touched_unasked(
    tmp_path: Path, file: JobFile, phase: str, words: str
) -> None:
    root = kept(tmp_path / "run", file, phase, 2)
    with pytest.raises(CommandError, match="holds") as caught:
        prepare(root, file, resume=False, replace=False)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2
    assert (root / "job.yaml").exists()


def test_replace_empties_the_run(tmp_path: Path, file: JobFile) -> None:
    root = write_run(tmp_path / "run")
    assert prepare(root, file, resume=False, replace=True)
    assert list(root.iterdir()) == []


def test_replace_deletes_nothing_but_runs(tmp_path: Path, file: JobFile) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").touch()
    with pytest.raises(CommandError, match="is no run"):
        prepare(tmp_path / "thesis", file, resume=False, replace=True)
    assert (tmp_path / "thesis" / "chapter").exists()


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("where", [".", ".."])
def test_the_folder_of_the_job_itself_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, replace: bool
) -> None:
    (tmp_path / "mine").mkdir()
    own = read_job(write_job(tmp_path / "mine"))
    (tmp_path / "metrics.jsonl").touch()
    monkeypatch.chdir(tmp_path / "mine")
    with pytest.raises(CommandError, match="the job file or its data lie in") as caught:
        prepare(Path(where), own, resume=False, replace=replace)
    assert caught.value.exit_code == 2
    assert (tmp_path / "mine" / "train.jsonl").exists()


def test_a_kept_job_replaces_its_own_run(tmp_path: Path, file: JobFile) -> None:
    root = kept(tmp_path / "run", file, "Failed", 2)
    again = read_job(root / "job.yaml")
    assert prepare(root, again, resume=False, replace=True)


def test_a_run_in_use_is_left_alone(tmp_path: Path, file: JobFile) -> None:
    root = write_run(tmp_path / "run")
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CommandError, match="works on"):
            prepare(root, file, resume=False, replace=True)


def test_an_unfinished_run_is_resumed(tmp_path: Path, file: JobFile) -> None:
    root = kept(tmp_path / "run", file, "Running", 2)
    assert prepare(root, file, resume=True, replace=False)


def test_a_complete_run_is_resumed_for_more_steps_only(tmp_path: Path, file: JobFile) -> None:
    root = kept(tmp_path / "run", file, "Complete", 4)
    assert not prepare(root, file, resume=True, replace=False)
    more = read_job(file.path, ["spec.steps=9"])
    assert prepare(root, more, resume=True, replace=False)
    fewer = read_job(file.path, ["spec.steps=3"])
    with pytest.raises(CommandError, match=r"finished 4 steps already, spec\.steps is 3"):
        prepare(root, fewer, resume=True, replace=False)


def test_another_job_is_not_resumed(tmp_path: Path, file: JobFile) -> None:
    root = kept(tmp_path / "run", file, "Running", 2)
    other = read_job(file.path, ["spec.seed=3", "spec.agents[solver].sampling.maxTokens=9"])
    with pytest.raises(CommandError, match=r"spec\.agents\[0\]\.sampling\.maxTokens, spec\.seed"):
        prepare(root, other, resume=True, replace=False)


def test_nothing_cannot_be_resumed(tmp_path: Path, file: JobFile) -> None:
    with pytest.raises(CommandError, match="no run to resume"):
        prepare(tmp_path / "none", file, resume=True, replace=False)


def test_a_run_without_its_job_is_not_resumed(tmp_path: Path, file: JobFile) -> None:
    root = kept(tmp_path / "run", file, "Running", 2)
    (root / "job.yaml").unlink()
    with pytest.raises(CommandError, match=r"lost its job\.yaml"):
        prepare(root, file, resume=True, replace=False)


def test_the_kept_job_is_the_one_that_runs_wherever_it_lies(tmp_path: Path, file: JobFile) -> None:
    root = tmp_path / "run"
    root.mkdir()
    changed = read_job(file.path, ["spec.seed=5"])
    keep_job(root, changed)
    again = read_job(root / "job.yaml")
    assert again.base_dir == tmp_path
    assert again.job.spec == changed.job.spec
    assert load_job(root / "job.yaml").spec.seed == 5


def test_changes_that_teach_nothing_else_are_none() -> None:
    old, new = job(), job(steps=9, roles={"worker": {"replicas": 2}}, store={"maxMemoryMib": 9})
    new["metadata"]["annotations"] = {"a": "b"}
    assert list(changes(old, new)) == []
    assert list(changes(old, job(agents=[]))) == [("spec", "agents")]
