"""What the outside is told of a job that waits."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from flexmarl.orchestrator.desk import Desk
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.report import LONGEST, Report
from flexmarl.orchestrator.rundir import Phase, RunDir


def said(folder: Path, report: Report) -> Any:
    asyncio.run(report.say())
    return json.loads((folder / "progress.json").read_text())["message"]


@pytest.mark.parametrize(
    ("away", "message"),
    [
        ([], "binding policies"),
        (["a worker"], "binding policies; waiting for a worker"),
        (list("abc"), "binding policies; waiting for a, b, c"),
        (list("abcde"), "binding policies; waiting for a, b, c and 2 more"),
        (["x" * 9999], f"binding policies; waiting for {'x' * LONGEST}..."),
    ],
)
def test_those_that_are_away_stand_behind_what_is_done(
    tmp_path: Path, away: list[str], message: str
) -> None:
    report = Report(RunDir(tmp_path), 4, Desk())
    report.now(Phase.STARTING, 0, "binding policies")
    report.waits_for(lambda: away)
    assert said(tmp_path, report) == message
    report.now(Phase.RUNNING, 1)
    assert said(tmp_path, report) == message.removeprefix("binding policies").removeprefix("; ")


@pytest.mark.parametrize("phase", [Phase.COMPLETE, Phase.FAILED])
def test_a_job_that_is_over_waits_for_nobody(tmp_path: Path, phase: Phase) -> None:
    report = Report(RunDir(tmp_path), 4, Desk())
    report.waits_for(lambda: ["a worker"])
    report.now(phase, message="that was it")
    assert said(tmp_path, report) == "that was it"


def test_only_the_time_that_somebody_is_away_has_no_bound_on_a_cluster() -> None:
    here = Limits()
    there = here.where_pods_come_back()
    changed = {name for name in Limits.__slots__ if getattr(here, name) != getattr(there, name)}
    assert changed == {"start", "unreachable", "store"}
