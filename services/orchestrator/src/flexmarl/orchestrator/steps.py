"""Step after step of one incarnation, with the evaluations and checkpoints in between.

A finished step is written down in an order that makes every crash harmless: the trainers have
committed, then metrics, then the checkpoint's manifest, then the store's `step`, then the step is
closed. Whoever takes over before the store knows plays an empty step: all of it is stored already.

Groups are played by `rollouts` meanwhile, those of later steps too as far as staleness allows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import structlog
from prometheus_client import Histogram

from flexmarl.contracts.v1.weights_pb2 import WeightsRef
from flexmarl.experience.client import StoredStep
from flexmarl.orchestrator import checkpoint as checkpoints
from flexmarl.orchestrator.checkpoint import Checkpoint, checksums
from flexmarl.orchestrator.desk import Desk
from flexmarl.orchestrator.evaluation import Evaluation
from flexmarl.orchestrator.inputs import Inputs
from flexmarl.orchestrator.overseen import overseen
from flexmarl.orchestrator.plan import checkpoint_due, eval_due
from flexmarl.orchestrator.position import Position
from flexmarl.orchestrator.record import Record
from flexmarl.orchestrator.report import Report
from flexmarl.orchestrator.rollouts import Rollouts
from flexmarl.orchestrator.rundir import Phase, RunDir
from flexmarl.orchestrator.step import Finished, Parts, Step
from flexmarl.orchestrator.training import Order, Standing, Trained
from flexmarl.orchestrator.verdict import Hardness, must_learn

STEP_SECONDS = Histogram(
    "flexmarl_orchestrator_step_seconds",
    "Time of one step.",
    buckets=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000),
)

USED_UP = "places-used-up"
"""Count of places whose tasks were all dropped but the last one, which stays."""
UNTOLD_STEPS = 3
"""In a row, after which it is said that nothing tells how hard tasks are."""

log = structlog.get_logger()


class Steps:
    """From `position` to the job's end; `keep` makes a new position the job's own."""

    def __init__(
        self,
        inputs: Inputs,
        parts: Parts,
        *,
        incarnation: int,
        position: Position,
        files: RunDir,
        report: Report,
        desk: Desk,
        keep: Callable[[Position, Collection[str]], Awaitable[None]],
    ) -> None:
        self._inputs, self._parts, self._incarnation = inputs, parts, incarnation
        self._spec = inputs.job.spec
        self._position, self._keep = position, keep
        self._keeping = asyncio.Lock()
        self._report, self._desk = report, desk
        self._record = Record(files, inputs, incarnation)
        self._plays_on = True
        """Groups of this step or, at its end, of the next one are played."""
        self._store_seconds = 0.0
        self._hardness = Hardness(self._spec.pipeline.difficulty)
        self._agents = {
            policy: [agent.name for agent in self._spec.agents_of(policy)]
            for policy in self._spec.trained_policies
        }

    async def run(self, stored: Mapping[int, StoredStep]) -> None:
        """`stored`: what the store holds already of the steps that are open."""
        lines = await self._record.read()
        rollouts = Rollouts(
            self._parts,
            self._inputs.tasks,
            self._incarnation,
            version=self._position.step,
            stored=stored,
            draws=self._position.draws,
            refills=self._position.refills,
            remember=lambda step: self._remember(rollouts, step),
        )
        await asyncio.to_thread(rollouts.learn, lines)  # many, and nothing is played yet
        del lines
        async with asyncio.TaskGroup() as background:
            playing = background.create_task(rollouts.run())
            while True:
                if self._evaluates() and not await self._desk.unless_to_save(self._evaluate()):
                    await self._save_and_rest(rollouts)
                rollouts.stand_at(self._position.step)
                if self._position.step == self._spec.steps:
                    break
                beyond = partial(self._goes_to_its_end, rollouts.step(self._position.step))
                if not await self._desk.unless_to_save(self._step(rollouts), beyond):
                    await self._save_and_rest(rollouts)
            playing.cancel()

    def _goes_to_its_end(self, step: Step) -> bool:
        """All its groups are played, so that trainers may have committed it; or one has, whose
        groups are there although nobody said so."""
        weights = self._parts.training.weights.values()
        return step.complete.is_set() or any(each.version > step.number for each in weights)

    async def _save_and_rest(self, rollouts: Rollouts) -> None:
        """Save where the job stands, say so, and wait for the end of this process."""
        position = self._position
        last = position.checkpoint
        if position.step and (last is None or last.step != position.step):
            saving = self._checkpoint(position.step, rollouts.draws())
            await self._still_ours()
            await asyncio.to_thread(checkpoints.begin, saving)
            standing = Standing(position.step, position.checkpoint, position.discard)
            saved = await self._parts.training.save_all(standing, saving.staging)
            saving = replace(saving, checksums=checksums(saved))
            await self._record.checkpoint(saving, saved)
            await self._move(rollouts, lambda same: replace(same, checkpoint=saving))
        self._desk.saved = position.step
        self._report.now(Phase.RUNNING, position.step, "saved; waiting for the end")
        log.info("saved, resting", step=position.step)
        await asyncio.Event().wait()

    def _evaluates(self) -> bool:
        """Unless that is not due, or was done."""
        return eval_due(self._spec, self._position.step, self._record.evaluated)

    async def _evaluate(self) -> None:
        """The version that the job stands at."""
        version = self._position.step
        evaluation = Evaluation(self._parts, self._incarnation, version, self._inputs)
        self._report.now(Phase.EVALUATING, version, groups=evaluation.progress)
        line = await evaluation.run()
        await self._still_ours()
        await self._record.evaluation(line)
        log.info("evaluated", version=version, seconds=round(line["seconds"], 2))

    async def _step(self, rollouts: Rollouts) -> None:
        position, number = self._position, self._position.step
        step, self._plays_on = rollouts.step(number), True
        self._report.now(Phase.RUNNING, number, groups=lambda: (len(step.done), step.total))
        saving = self._checkpoint(number + 1) if checkpoint_due(self._spec, number + 1) else None
        if saving is not None:
            await asyncio.to_thread(checkpoints.begin, saving)
        standing = Standing(number, position.checkpoint, position.discard)
        finished = await self._train(step, standing, saving, rollouts)
        if saving is not None:
            known = checksums(finished.saved)
            saving = replace(saving, draws=rollouts.draws(), checksums=known)
        self._plays_on = not self._spec.pipeline.difficulty and not eval_due(
            self._spec, number + 1, self._record.evaluated
        )
        if self._plays_on:
            rollouts.stand_at(number + 1)  # while this is written down
        await self._still_ours()
        self._desk.line = finished.line
        finished = await self._record.step(finished, saving)
        rollouts.learn([finished.line])
        if self._hardness.untold(finished.line["agents"]) == UNTOLD_STEPS:
            log.warning(
                "difficulty has nothing to go by: all episodes reach solvedReward, or none does",
                solved_reward=self._spec.solved_reward,
                steps=UNTOLD_STEPS,
            )
        used_up = finished.line["counts"].get(USED_UP, 0) == step.total
        await self._move(
            rollouts,
            lambda before: replace(
                before,
                step=number + 1,
                checkpoint=saving or before.checkpoint,
                idle=0 if finished.updated else before.idle + 1,
                used_up=before.used_up + 1 if used_up else 0,
            ),
        )
        if saving is not None:
            await self._record.prune(saving)
        with self._storing():
            await self._parts.experience.close_step(self._incarnation, number)
        log.info("step", step=number, seconds=round(finished.line["seconds"]["step"], 3))
        if self._position.idle:
            log.warning("no policy was updated", step=number, in_a_row=self._position.idle)
        must_learn(self._position, finished.line["counts"], self._inputs.limits)

    async def _train(
        self, step: Step, standing: Standing, saving: Checkpoint | None, rollouts: Rollouts
    ) -> Finished:
        """Train the step as its groups come, and have the engines follow.

        JobFailedError: no episode of the whole step could be scored, or a trainer hangs.
        """
        started = time.monotonic()
        order = Order(
            standing,
            step.total,
            saving.staging if saving else None,
            lambda: {policy: step.sampled(agents) for policy, agents in self._agents.items()},
            self._published,
        )
        limits = self._parts.limits
        trained = await overseen(step, order, self._parts.training, limits.train_tail)
        ended = time.monotonic()
        await self._last_answers(step)
        staleness = rollouts.staleness(step.number)
        if not self._spec.pipeline.max_staleness:
            await self._parts.engines.ready()
        step.must_have_scored()
        step.counts["groups-reissued"] += rollouts.reissued(step.number)
        step.dropped = rollouts.dropped(step.number)
        step.counts[USED_UP] = rollouts.used_up(step.number)
        now = time.monotonic()
        STEP_SECONDS.observe(now - started)
        seconds = {
            "step": now - started,
            "rollout": max(0.0, (step.complete_at or now) - started),
            "train": max(
                (t.metrics.get("train_seconds", 0.0) for t in trained.values()), default=0
            ),
            "sync": max(0.0, now - ended),
            "checkpoint": max((t.seconds_saving for t in trained.values()), default=0.0),
            "store": self._stored(trained),
        }
        return step.finished(started, seconds, staleness, trained)

    def _published(self, policy: str, weights: WeightsRef) -> None:
        self._parts.engines.want(policy, weights)

    async def _last_answers(self, step: Step) -> None:
        """A trainer may be done before the last answer is here; that one is still worth having."""
        try:
            async with asyncio.timeout(self._parts.limits.answers):
                await step.complete.wait()
        except TimeoutError:
            log.warning("answers of some groups did not come", step=step.number)
            step.learn((await self._parts.experience.stored(step.number)).notes)

    async def _remember(self, rollouts: Rollouts, step: int) -> None:
        """Keep what was refilled of the groups drawn for that step."""
        async with self._keeping:
            fields = rollouts.refills(step)
            refills = {**self._position.refills, **fields}
            self._position = replace(self._position, refills=refills)
            with self._storing():
                await self._keep(self._position, fields)

    async def _move(self, rollouts: Rollouts, move: Callable[[Position], Position]) -> None:
        """Keep where the job stands, with what was refilled and, at the end of a step, drawn: what
        has found its place since then says so itself."""
        async with self._keeping:  # one after the other: the last one counts
            before, moved = self._position.step, move(self._position)
            if moved.step > before:
                rollouts.close(before)
                moved = replace(moved, draws=rollouts.draws())
            self._position = replace(moved, refills=rollouts.refills())
            with self._storing():
                await self._keep(self._position, ())

    async def _still_ours(self) -> None:
        """FencedError: another orchestrator has taken over, and the files are its."""
        with self._storing():
            await self._parts.experience.put_state(self._incarnation, {})

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """The store is asked in the block, and nothing else done, unless groups are played."""
        started = time.monotonic()
        try:
            yield
        finally:
            if not self._plays_on:
                self._store_seconds += time.monotonic() - started

    def _stored(self, trained: Mapping[str, Trained]) -> float:
        """Seconds that the store took since this was asked last: by which it held up the slot that
        it held up most, acknowledgements among them, and our own calls while nothing was played."""
        own, self._store_seconds = self._store_seconds, 0.0
        spent = {name: one.metrics.get("store_seconds", 0.0) for name, one in trained.items()}
        return self._parts.training.longest(spent) + own

    def _checkpoint(self, version: int, draws: str = "") -> Checkpoint:
        """The one to be made at `version`."""
        last, uid = self._position.checkpoint, self._inputs.settings.job_uid
        before = tuple(name for name in (last.lineage if last else ()) if name != uid)
        directory = checkpoints.directory_of(self._inputs.checkpoints, version)
        return Checkpoint(directory, version, (*before, uid), draws)
