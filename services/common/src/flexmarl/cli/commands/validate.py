"""`flexmarl validate JOB`: everything that is wrong with a job, before anything starts."""

from __future__ import annotations

from flexmarl.cli.commands.arguments import JobArgument, SetOption
from flexmarl.cli.console import INVALID, leave, say, warn


def command(job: JobArgument, overrides: SetOption = None) -> None:
    """Check a job: fields, rules, data, models, workflow and reward.

    Every problem is named at once, with its line, the value, what is allowed and the nearest match.
    """
    from flexmarl.cli.checks import checked_job
    from flexmarl.contracts.problems import JobFileError

    try:
        found = checked_job(job, overrides or ())
    except JobFileError as error:
        warn(str(error))
        for problem in error.warnings:
            warn(f"warning: {problem}")
        leave(INVALID)
    for problem in found.warnings:
        warn(f"warning: {problem}")
    spec = found.job.spec
    say(
        f"{job} is valid: {len(spec.agents)} agents, {len(spec.trained_policies)} of "
        f"{len(spec.policies)} policies trained, {spec.steps} steps of "
        f"{spec.batch.tasks_per_step} x {spec.batch.group_size} episodes"
    )
