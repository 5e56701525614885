import io
from pathlib import Path

import pytest
from rich.console import Console
from tests.unit.cli.runs import evaluation, lines, metric, progress, write_run

from flexmarl.cli.live import LiveTable, PlainLines, display


def test_plain_lines_say_each_step_once_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress(tmp_path, "Starting", 0)
    with PlainLines(tmp_path) as shown:
        shown.event("engine-solver-0 died (exit 137); restart 1 of 3")
        (tmp_path / "evals.jsonl").write_text(lines([evaluation(0, 0.25), evaluation(2, 0.5)]))
        (tmp_path / "metrics.jsonl").write_text(lines([metric(0), metric(1)]))
        progress(tmp_path, "Running", 2)
        shown.update()
        shown.update()
    found = [
        line.split("]")[-1].split("  ")[0].strip() for line in capsys.readouterr().out.splitlines()
    ]
    expected = ["held out, version 0:", "step 1/4", "step 2/4", "held out, version 2:"]
    assert [line for line in found if line in expected] == expected
    assert "engine-solver-0 died (exit 137); restart 1 of 3" in found


def test_a_resumed_run_does_not_tell_its_past_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_run(tmp_path / "run", steps=2, phase="Running")
    with PlainLines(root), (root / "metrics.jsonl").open("a") as file:
        file.write(lines([metric(2)]))
    out = capsys.readouterr().out
    assert "step 3/4" in out
    assert "step 2/4" not in out


def test_what_is_no_terminal_gets_lines(tmp_path: Path) -> None:
    assert isinstance(display(tmp_path, plain=False), PlainLines)


def test_a_terminal_gets_a_table(tmp_path: Path) -> None:
    root = write_run(tmp_path / "digits", steps=2, phase="Running")
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with LiveTable(root, console) as shown:
        shown.event("trainer-0 died (exit 1); restart 1 of 3")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "digits" in text
    assert "trainer-0 died (exit 1); restart 1 of 3" in text
