import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.unit.cli.odd import ODD_LINES
from tests.unit.cli.runs import evaluation, metric, progress, write_run

from flexmarl.cli.commands.episodes import transcript
from flexmarl.cli.rundata import RunData
from flexmarl.cli.view import (
    binned,
    eval_line,
    overview,
    result_table,
    seconds_left,
    sparkline,
    step_line,
    tokens_per_second,
)


def shown(run: RunData, phase: str, *events: str, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(overview(run, phase=phase, elapsed=63, events=events))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_everything_about_a_run_fits_80_columns(tmp_path: Path) -> None:
    root = write_run(tmp_path / "digits", steps=3, phase="Running")
    run = RunData(root)
    run.refresh()
    text = shown(run, "Running", "engine-solver-0 died, restarted")
    assert max(map(len, text)) <= 80
    assert text[0] == "digits   Running   step 3/4   groups 1/2   1:03   about 2.0 s left"
    assert any(line.split()[:3] == ["solver", "0.500", "50.0%"] for line in text)
    assert any("37.5% → 90.0%" in line for line in text)
    assert any(
        line.split() == ["solver", "3", "0.500", "1.000", "-", "-", "0.001"] for line in text
    )
    assert any("500 tokens/s" in line and "rollout 1.00 s" in line for line in text)
    assert text[-2:] == ["8 of the last step not scored", "engine-solver-0 died, restarted"]


@pytest.mark.parametrize("width", [20, 30, 40, 60])
def test_a_narrow_terminal_sees_fewer_columns_and_no_cut_number(tmp_path: Path, width: int) -> None:
    run = RunData(write_run(tmp_path / "digits", steps=3, phase="Running"))
    run.refresh()
    text = shown(run, "Running", width=width)
    assert max(map(len, text)) <= width
    assert "…" not in "".join(text)
    assert sum("━" in line for line in text) == 1
    assert any(line.split()[:2] == ["solver", "0.500"] for line in text)


def test_a_run_without_a_step_says_so(tmp_path: Path) -> None:
    progress(tmp_path, "Starting", 0, message="waiting for engine-solver-0")
    run = RunData(tmp_path)
    run.refresh()
    text = shown(run, "Starting")
    assert text[-2:] == ["waiting for engine-solver-0", "No step is finished yet."]


def test_a_policy_without_numbers_shows_dashes(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run")
    (root / "metrics.jsonl").write_text(
        '{"step": 0, "agents": {"a": null}, "policies": {"p": 1}}\n'
    )
    run = RunData(root)
    run.refresh()
    assert [line.split()[:3] for line in shown(run, "Running") if line.startswith(" a ")] == [
        ["a", "-", "-"]
    ]


@given(st.lists(ODD_LINES, min_size=1, max_size=4))
def test_no_content_is_too_odd_to_show(
    tmp_path_factory: pytest.TempPathFactory, values: list[dict[str, object]]
) -> None:
    root = tmp_path_factory.mktemp("run")
    for name in ("metrics.jsonl", "evals.jsonl"):
        (root / name).write_text("".join(json.dumps(value) + "\n" for value in values))
    run = RunData(root)
    run.refresh()
    assert shown(run, "Running")
    for value in values:
        assert "\n" not in step_line(value, 0)
        assert eval_line(value)
        assert transcript(value, prompts=True)


def test_one_step_is_one_line() -> None:
    assert step_line(metric(1), 12) == (
        "step  2/12  solver 0.250 (25.0%)  verifier 0.500 (-)  500 tokens/s  2.0 s"
    )
    assert eval_line(evaluation(0, 0.375)) == ("held out, version 0:  solver 37.5%  verifier 37.5%")


def test_staleness_and_dropped_groups_are_shown_where_there_are_any(tmp_path: Path) -> None:
    root = write_run(tmp_path / "digits", steps=1, phase="Running")
    line = metric(1, staleness={"trained": 2}, counts={"groups-dropped": 3})
    with (root / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    run = RunData(root)
    run.refresh()
    assert step_line(line, 12).endswith("500 tokens/s  2.0 s  2 behind  3 dropped")
    assert any("2 behind   3 dropped" in text for text in shown(run, "Running", width=120))
    assert "behind" not in step_line(metric(1, staleness={"trained": 0}), 12)


def test_the_result_is_a_table_per_policy(tmp_path: Path) -> None:
    run = RunData(tmp_path)
    run.summary = {
        "policies": {
            "solver": {"version": 4, "eval_before": 0.25, "eval_after": None, "reward_first": 0.5}
        }
    }
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(result_table(run))
    assert isinstance(console.file, io.StringIO)
    last = console.file.getvalue().splitlines()[-1]
    assert last.split() == ["solver", "4", "25.0%", "-", "0.500", "-"]


def test_sparklines_span_lowest_to_highest() -> None:
    assert sparkline([0.0, 0.5, 1.0, None]) == "▁▅█ "
    assert sparkline([0.3, 0.3]) == "▄▄"
    assert sparkline([None]) == sparkline([]) == ""


def test_bins_are_means_of_neighbours() -> None:
    assert binned([1.0, 3.0, None, 5.0, None], 3) == [2.0, 5.0, None]
    assert binned([1.0, 2.0], 20) == [1.0, 2.0]
    assert binned([], 20) == []


def test_the_rest_takes_as_long_as_the_latest_steps(tmp_path: Path) -> None:
    run = RunData(tmp_path)
    assert seconds_left(run) is None
    write_run(tmp_path, steps=2, phase="Running")
    run.refresh()
    assert seconds_left(run) == pytest.approx(4.0)


def test_no_seconds_is_no_rate() -> None:
    assert tokens_per_second(metric(0, seconds={"step": 0})) is None
    assert tokens_per_second({}) is None
