"""`flexmarl run JOB`: train a job on this machine, with all it needs, and show how it goes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flexmarl.cli.commands.arguments import JobArgument, SetOption
from flexmarl.cli.console import FAILED, INTERRUPTED, INVALID, CommandError, leave, say, warn

if TYPE_CHECKING:
    from flexmarl.cli.rundata import RunData
    from flexmarl.contracts.reading import JobFile


def command(
    job: JobArgument,
    overrides: SetOption = None,
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Instead of runs/<name of the job>.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the run's last checkpoint.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Delete the run of that name and start over.")
    ] = False,
    *,
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines instead of a table, also on a terminal.")
    ] = False,
) -> None:
    """Train a job on this machine, from its first step to its last.

    What happens is kept in runs/NAME: report.html, metrics.jsonl, checkpoints/, logs/.
    """
    from flexmarl.cli.checks import checked_job
    from flexmarl.cli.rundir import keep_job, prepare
    from flexmarl.contracts.cluster_rules import only_on_clusters

    if resume and replace:
        raise CommandError("--resume goes on with a run, --replace deletes it: give one", INVALID)
    file = checked_job(job, overrides or (), here=True)
    for problem in file.warnings:
        warn(f"warning: {problem}")
    if without_meaning := only_on_clusters(file.document):
        warn(f"note: on one machine without a meaning: {', '.join(without_meaning)}")
    root = run_dir or default_dir(file)
    if not prepare(root, file, resume=resume, replace=replace):
        say(f"{root} is complete: there is nothing to resume. Raise spec.steps to train on.")
        return
    keep_job(root, file)
    leave(_play(file, root, resume=resume, plain=plain))


def default_dir(file: JobFile) -> Path:
    return Path("runs") / file.job.metadata.name


def _play(file: JobFile, root: Path, *, resume: bool, plain: bool) -> int:
    """Run the job to its end; the exit code."""
    from flexmarl.cli.commands import report
    from flexmarl.cli.live import display
    from flexmarl.cli.rundata import RunData
    from flexmarl.local.supervisor import run_job

    say(f"{file.job.metadata.name}: logs, metrics and report in {root}")
    try:
        with display(root, plain=plain) as shown:
            outcome = run_job(
                root / "job.yaml",
                base_dir=file.base_dir,
                run_dir=root,
                resume=resume,
                on_event=shown.event,
            )
    except KeyboardInterrupt:
        elsewhere = "" if root == default_dir(file) else f" --run-dir {root}"
        warn(f"Interrupted. Go on with: flexmarl run {file.path}{elsewhere} --resume")
        return INTERRUPTED
    with _unbothered():
        data = RunData(root)
        data.refresh()
        if data.metrics or data.evals:
            _print_result(data)
        say(f"Report: {report.write(root)}")
    if not outcome.complete:
        warn(f"The job failed: {outcome.message}")
        warn(f"Logs: {root / 'logs'}")
        return FAILED
    return 0


@contextmanager
def _unbothered() -> Iterator[None]:
    """In the block, which is short, signals that mean stop do nothing: the job has ended."""
    from flexmarl.local.supervisor import STOP_SIGNALS

    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_result(data: RunData) -> None:
    from flexmarl.cli.terminal import Terminal
    from flexmarl.cli.view import result_table

    Terminal().print(result_table(data))
