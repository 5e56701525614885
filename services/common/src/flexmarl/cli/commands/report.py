"""`flexmarl report [RUN]`: report.html anew."""

from __future__ import annotations

from pathlib import Path

from flexmarl.cli.commands.arguments import RunArgument
from flexmarl.cli.console import say, warn


def command(run: RunArgument = None) -> None:
    """Write a run's report.html from what it holds now, also while it goes on."""
    from flexmarl.cli.find import find_run

    root = find_run(run)
    say(str(write(root)))


def write(root: Path) -> Path:
    """Write the report of the run in `root`; its path. A job file that is broken is left out."""
    from flexmarl.cli.report.page import write_report
    from flexmarl.cli.rundata import RunData
    from flexmarl.contracts.reading import JobFileError, load_job

    job = None
    try:
        job = load_job(root / "job.yaml")
    except JobFileError as error:
        warn(f"The report says nothing about the job: {error}")
    return write_report(RunData(root), job)
