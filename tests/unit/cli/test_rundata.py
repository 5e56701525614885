import fcntl
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cli.runs import lines, metric, progress, write_run

from flexmarl.cli.rundata import JsonLines, RunData, number


def test_a_half_written_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = JsonLines(path)
    assert not reader.refresh()
    path.write_text('{"step": 0}\n{"st')
    reader.refresh()
    assert reader.lines == [{"step": 0}]
    with path.open("a") as file:
        file.write('ep": 1}\n')
    reader.refresh()
    assert reader.lines == [{"step": 0}, {"step": 1}]
    assert reader.damaged == 0
    assert not reader.refresh()


def test_damaged_lines_are_counted_and_passed_over(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", steps=2)
    text = lines([metric(0)]) + "not json\n[1]\n\xff\n\n" + lines([metric(1)])
    (root / "metrics.jsonl").write_text(text, encoding="latin-1")
    run = RunData(root)
    run.refresh()
    assert [line["step"] for line in run.metrics] == [0, 1]
    assert run.notes == ["metrics.jsonl: 3 damaged lines left out"]


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path, other = tmp_path / "metrics.jsonl", tmp_path / "other"
    reader = JsonLines(path)
    path.write_text(lines([metric(step) for step in range(3)]))
    reader.refresh()
    other.write_text(lines([metric(step) for step in range(2)]))
    other.replace(path)
    reader.refresh()
    assert [line["step"] for line in reader.lines] == [0, 1]


def test_a_step_that_was_played_again_counts_once_as_it_was_last(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", steps=2)
    with (root / "metrics.jsonl").open("a") as file:
        file.write(lines([metric(1, time=5.0)]))
    run = RunData(root)
    run.refresh()
    assert [line["time"] for line in run.metrics] == [1000.0, 5.0]


def test_an_empty_folder_is_a_run_that_has_not_begun(tmp_path: Path) -> None:
    run = RunData(tmp_path)
    run.refresh(episodes=True)
    assert (run.metrics, run.evals, run.episodes, run.agents, run.seconds) == ([], [], [], [], None)
    assert (run.progress.phase, run.phase, run.notes) == ("Starting", "Stopped", [])


@pytest.mark.parametrize("text", ["", "{", "[1]", "nonsense", '"text"'])
def test_a_damaged_progress_file_is_a_note_and_the_last_one_stays(
    tmp_path: Path, text: str
) -> None:
    progress(tmp_path, "Running", 3)
    run = RunData(tmp_path)
    run.refresh()
    (tmp_path / "progress.json").write_text(text)
    run.refresh()
    assert run.progress.step == 3
    assert run.notes == ["progress.json is damaged: not a JSON object"]


def test_an_unfinished_run_that_nobody_works_on_is_stopped(tmp_path: Path) -> None:
    progress(tmp_path, "Running", 3)
    run = RunData(tmp_path)
    run.refresh()
    assert run.phase == "Stopped"
    with (tmp_path / ".lock").open("w") as lock:
        assert run.phase == "Stopped"
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run.phase == "Running"
    progress(tmp_path, "Failed", 3)
    run.refresh()
    assert run.phase == "Failed"


@pytest.mark.parametrize("value", [None, "1", True, float("nan"), float("inf"), [], {}])
def test_what_is_no_finite_number_is_none(value: object) -> None:
    assert number({"a": {"b": value}}, "a", "b") is None
    assert number(value, "a") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["step", "agents", "policies", "seconds", "tokens", "solver", "reward"])
            | st.text(),
            inner,
            max_size=3,
        )
    ),
)


@given(st.lists(JSON, max_size=4))
def test_no_content_is_too_odd_to_read(
    tmp_path_factory: pytest.TempPathFactory, values: list[object]
) -> None:
    root = tmp_path_factory.mktemp("run")
    text = "".join(json.dumps(value) + "\n" for value in values)
    for name in ("metrics.jsonl", "evals.jsonl", "episodes.jsonl", "progress.json", "summary.json"):
        (root / name).write_text(text)
    run = RunData(root)
    run.refresh(episodes=True)
    assert len(run.metrics) <= len(values)
    assert isinstance(run.phase, str)
    assert run.seconds is None or math.isfinite(run.seconds)
    assert all(isinstance(name, str) for name in (*run.agents, *run.policies))
