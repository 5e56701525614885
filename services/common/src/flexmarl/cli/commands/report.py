"""`flexmarl report [RUN]`: report.html anew."""

from __future__ import annotations

from pathlib import Path

from flexmarl.cli.commands.arguments import AnyRunArgument, ContextOption, NamespaceOption
from flexmarl.cli.console import say, warn


def command(
    run: AnyRunArgument = None, namespace: NamespaceOption = None, context: ContextOption = None
) -> None:
    """Write a run's report.html from what it holds now, also while it goes on.

    Of a MARLJob it says where the files lie that a report is made of, and how to get them.
    """
    from flexmarl.cli.commands.target import local_run

    root = local_run(run, namespace, context)
    if root is None:
        from flexmarl.cli.cluster import ask
        from flexmarl.cli.jobs import whereabouts

        say(ask(whereabouts(str(run), namespace, context)))
        return
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
