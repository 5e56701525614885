"""The whole job: from the first bind to the last evaluation, over whatever fails in between.

One *incarnation* is one go at it: take a number from the store, bind every policy, then step after
step. Two failures end an incarnation and not the job: a store that lost its memory (the step is
played again where it stands) and a policy that lost its state (all policies fall back to the last
checkpoint together). docs/decisions/0003-failure-rules.md says what happens when what fails.
"""

from __future__ import annotations

import asyncio
import time

import structlog
from prometheus_client import Counter

from flexmarl.contracts.job import MARLJob
from flexmarl.experience.client import StoredStep
from flexmarl.orchestrator.admission import open_steps
from flexmarl.orchestrator.binding import Binder
from flexmarl.orchestrator.calls import StateLostError, StoreLostError, cause
from flexmarl.orchestrator.desk import Desk
from flexmarl.orchestrator.engines import Engines
from flexmarl.orchestrator.inputs import Inputs, read_inputs
from flexmarl.orchestrator.lead import Lead
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.report import Report
from flexmarl.orchestrator.rundir import Phase, RunDir, lines
from flexmarl.orchestrator.services import Services, connected, named, wait_for_everyone
from flexmarl.orchestrator.step import Parts
from flexmarl.orchestrator.steps import Steps
from flexmarl.orchestrator.store import Store
from flexmarl.orchestrator.summary import summary
from flexmarl.orchestrator.training import Standing, Training
from flexmarl.orchestrator.workers import Workers
from flexmarl.runtime.errors import InvalidJobError, JobFailedError
from flexmarl.runtime.settings import Settings

RECOVERIES = Counter(
    "flexmarl_orchestrator_recoveries_total",
    "Incarnations that ended early, by reason.",
    ["reason"],
)

log = structlog.get_logger()


async def run_job(
    job: MARLJob, settings: Settings, limits: Limits | None = None, desk: Desk | None = None
) -> None:
    """Train the job to its end, or from where it stands.

    JobFailedError or InvalidJobError: it cannot succeed, `progress.json` says so. Anything else
    is a crash, after which this can be called again.
    """
    limits, desk = limits or Limits(), desk or Desk()
    if settings.discovery is not None:
        limits = limits.where_pods_come_back()
    files = RunDir(settings.run_dir)
    report = Report(files, job.spec.steps, desk)
    try:
        async with asyncio.TaskGroup() as background:
            reporting = background.create_task(report.run())
            inputs = await asyncio.to_thread(read_inputs, job, settings, limits)
            addresses = named(job, settings)
            async with connected(job, settings, limits) as services:
                await wait_for_everyone(
                    addresses, services.directory, limits.start, report.waits_for
                )
                looking = background.create_task(services.directory.watch())
                await Run(inputs, services, files, report, desk).to_the_end()
                looking.cancel()
            reporting.cancel()
    except BaseExceptionGroup as errors:
        error = cause(errors)
        if isinstance(error, JobFailedError | InvalidJobError):
            report.now(Phase.FAILED, message=str(error))
        await report.say()
        raise error from errors
    await report.say()


class Run:
    """One job from here to its end; use once."""

    def __init__(
        self, inputs: Inputs, services: Services, files: RunDir, report: Report, desk: Desk
    ) -> None:
        self._inputs, self._services, self._desk = inputs, services, desk
        self._job, self._limits = inputs.job, inputs.limits
        self._files, self._report = files, report
        self._workers = Workers(services.directory.workers, inputs.limits)
        groups = inputs.job.spec.batch.tasks_per_step
        self._store = Store(
            services.asking,
            inputs.limits,
            desk,
            groups=groups,
            stored=lambda: self._workers.stored,
        )
        self._lead = Lead(inputs, services.experience, self._store, files)
        self._epochs: dict[str, int] = {}
        self._recoveries = 0

    async def to_the_end(self) -> None:
        """JobFailedError when it cannot be reached."""
        while True:
            try:
                await self._go()
            except BaseExceptionGroup as errors:
                error = cause(errors)
                if not isinstance(error, StateLostError | StoreLostError):
                    raise
                self._recover(error)
            else:
                break
        await self._finish()

    def _recover(self, error: StateLostError | StoreLostError) -> None:
        self._recoveries = 1 if self._lead.moved else self._recoveries + 1
        self._lead.moved = False
        if self._recoveries > self._limits.recoveries:
            raise JobFailedError(
                f"{self._recoveries} recoveries in a row finished no step; the last one: {error}"
            ) from error
        if isinstance(error, StoreLostError):
            self._lead.lost_store(error.above)
            RECOVERIES.labels("store-lost").inc()
            log.warning(
                "the step is played again", step=self._lead.position.step, reason=str(error)
            )
        else:
            self._lead.lost_state()
            RECOVERIES.labels("state-lost").inc()
            log.warning("the job falls back", step=self._lead.position.step, reason=str(error))

    async def _go(self) -> None:
        """One incarnation. StateLostError, StoreLostError: it is over and another may go on."""
        lead, services = self._lead, self._services
        self._report.waits_for(self._store.away)
        async with asyncio.TaskGroup() as waiting:
            watching = waiting.create_task(self._store.watch(lead.position.step))
            await lead.take()
            watching.cancel()
        self._store.answered()
        self._report.now(Phase.STARTING, lead.position.step, "binding policies")
        training = Training(self._job, services, self._limits, lead.incarnation, self._epochs)
        directory = services.directory
        engines = Engines(
            self._job, directory.engines, directory.pools, self._limits, lead.incarnation
        )
        directory.changed = engines.look
        self._report.waits_for(
            lambda: [
                *self._store.away(),
                *directory.missing(),
                *training.away(),
                *engines.away(),
                *self._workers.away(),
            ]
        )
        binder = Binder(
            self._job,
            lead.incarnation,
            engines,
            directory.worker_channels,
            limits=self._limits,
            desk=self._desk,
            job_file=self._inputs.settings.job_file,
        )
        parts = Parts(
            self._job, self._limits, services.experience, self._workers, engines, training
        )
        async with asyncio.TaskGroup() as background:
            helpers = [
                background.create_task(engines.watch()),
                background.create_task(binder.run()),
                background.create_task(lead.guard()),
            ]
            position = lead.position
            standing = Standing(position.step, position.checkpoint, position.discard)
            await training.bind_all(standing)
            for policy, weights in training.weights.items():
                engines.want(policy, weights)
            stored = await self._stored(training)
            await lead.followed()
            await engines.ready()
            steps = Steps(
                self._inputs,
                parts,
                incarnation=lead.incarnation,
                position=lead.position,
                files=self._files,
                report=self._report,
                desk=self._desk,
                keep=lead.keep,
            )
            await steps.run(stored)
            for helper in helpers:
                helper.cancel()

    async def _stored(self, training: Training) -> dict[int, StoredStep]:
        """What the store holds of the steps that are open. A policy may be ahead of the others by
        this step, but then nothing of it can be played again as it was, so the store must hold all
        of it."""
        spec, step = self._job.spec, self._lead.position.step
        held = {}
        for number in open_steps(step, spec.steps, spec.pipeline.max_staleness + 1):
            found = await self._services.experience.stored(number)
            if found.closed:
                raise StateLostError(
                    f"the store has closed step {number}, the job stands at {step}"
                )
            held[number] = found
        if step == spec.steps:
            return held
        lacking = spec.batch.tasks_per_step - len(held[step].indexes)
        ahead = [name for name, weights in training.weights.items() if weights.version > step]
        if ahead and lacking:
            raise StateLostError(
                f"{', '.join(ahead)} finished step {step}, the store lacks {lacking} of its groups"
            )
        return held

    async def _finish(self) -> None:
        metrics = await asyncio.to_thread(lines, self._files.metrics)
        evals = await asyncio.to_thread(lines, self._files.evals)
        seconds = time.time() - self._lead.position.started
        await asyncio.to_thread(self._files.summary, summary(self._job, seconds, metrics, evals))
        idle = not any(
            policy["updated"] for line in metrics for policy in line["policies"].values()
        )
        message = "no step updated any policy" if idle else ""
        self._report.now(Phase.COMPLETE, self._lead.position.step, message)
        log.info("complete", steps=self._lead.position.step, seconds=round(seconds, 1))
