"""What a pipe gets: lines as long as they are, no colours; and when it is closed, no more."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

from rich.text import Text
from tests.unit.cli.runs import write_run

from flexmarl.cli.terminal import Terminal

LONG = "word " * 100 + "終"


def test_a_pipe_gets_whole_lines_without_colours_a_terminal_broken_ones() -> None:
    out = io.StringIO()
    Terminal(file=out).print(Text(LONG, style="red"))
    assert out.getvalue() == f"{LONG}\n"
    out = io.StringIO()
    Terminal(file=out, width=20, force_terminal=True).print(Text(LONG, style="red"))
    assert out.getvalue().count("\n") > 20


def test_a_reader_that_has_seen_enough_ends_a_command_without_a_word(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "digits")
    episode = {"step": 0, "turns": [{"agent": "solver", "text": LONG}]}
    (run / "episodes.jsonl").write_text(f"{json.dumps(episode)}\n" * 2000)
    with subprocess.Popen(
        [sys.executable, "-m", "flexmarl.cli", "episodes", "--step", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"step 1")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
