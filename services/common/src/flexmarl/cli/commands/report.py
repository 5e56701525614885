"""`flexmarl report [RUN]`: report.html anew."""

from __future__ import annotations

from pathlib import Path

from flexmarl.cli.commands.arguments import (
    AnyRunArgument,
    ClaimOption,
    ContextOption,
    ImageOption,
    NamespaceOption,
)
from flexmarl.cli.console import say, warn


def command(
    run: AnyRunArgument = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    image: ImageOption = None,
    claim: ClaimOption = None,
) -> None:
    """Write a run's report.html anew, also while it goes on.

    Of a MARLJob, its metrics and episodes are copied to a folder below runs/ first: from its
    orchestrator, or once that is gone by a pod that mounts its claim for some seconds.
    """
    from flexmarl.cli.commands.target import local_run

    root = local_run(run, namespace, context, claim)
    if root is None:
        from flexmarl.cli.connection import ask
        from flexmarl.cli.reading import Where, copied_run

        root = ask(copied_run(str(run), Where(namespace, context, image, claim)))
        say(str(write(root, copied=True)))
        return
    say(str(write(root)))


def write(root: Path, *, copied: bool = False) -> Path:
    """Write the report of the run in `root`; its path. A job file that is broken is left out.

    `copied`: whoever works on the run does so elsewhere.
    """
    from flexmarl.cli.report.page import write_report
    from flexmarl.cli.rundata import RunData
    from flexmarl.contracts.reading import JobFileError, load_job

    job = None
    try:
        job = load_job(root / "job.yaml")
    except JobFileError as error:
        warn(f"The report says nothing about the job: {error}")
    return write_report(RunData(root, copied=copied), job)
