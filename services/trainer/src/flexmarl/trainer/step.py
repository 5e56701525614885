"""One training step: leases the step's groups as they arrive, folds them, steps, publishes.

With several updates per step the weights move while groups are still being leased; what is in
shared memory stays the version that the step began with until the last update, and is what the loss
corrects against meanwhile. Whoever is interrupted in between starts again from there.
"""

import asyncio
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import structlog
from prometheus_client import Counter, Gauge, Histogram

from flexmarl.contracts.job import MARLJobSpec
from flexmarl.contracts.policy import DeadGroups
from flexmarl.experience.client import ExperienceClient, Lease
from flexmarl.experience.samples import LeasedGroup
from flexmarl.runtime.seeds import derive_seed
from flexmarl.trainer.accumulate import StepOrder, StepTotals, worthwhile_tokens
from flexmarl.trainer.admission import check_gap, check_group, comparable
from flexmarl.trainer.advantage import WHOLE_STEP
from flexmarl.trainer.ahead import leasing_ahead
from flexmarl.trainer.batch import Prepared, prepare, step_deviations
from flexmarl.trainer.compute import Compute
from flexmarl.trainer.hindrance import Account
from flexmarl.trainer.home import Resident
from flexmarl.trainer.replay import MAX_GROUPS, choose, lease_places

log = structlog.get_logger()

LEASE_SECONDS = 1.0
"""How long one lease waits: a slot that was fenced notices within this time."""

STEP = Histogram("flexmarl_trainer_step_seconds", "Lease to publication.", ["policy"])
COMPUTE = Counter("flexmarl_trainer_compute_seconds_total", "Spent computing.", ["policy"])
TOKENS = Counter("flexmarl_trainer_tokens_total", "Trained tokens.", ["policy"])
STEPS = Counter("flexmarl_trainer_steps_total", "Published versions.", ["policy", "updated"])
VERSION = Gauge("flexmarl_trainer_version", "Version of the policy.", ["policy"])
GAP = Gauge("flexmarl_trainer_logprob_gap_nats", "Mean gap to the engine's.", ["policy"])
STALENESS = Gauge("flexmarl_trainer_staleness_versions", "Mean of trained tokens.", ["policy"])


class Step:
    """Step `step` of one policy, once."""

    def __init__(
        self, resident: Resident, spec: MARLJobSpec, *, epoch: int, step: int, groups: int
    ) -> None:
        self._resident, self._spec = resident, spec
        self._policy, self._name = resident.policy, resident.policy.spec.name
        self._training = resident.policy.spec.training
        self._epoch, self._step, self._groups = epoch, step, groups
        self._comparable = comparable(spec, self._name)
        self._vocabulary = self._policy.forward.vocabulary
        self._whole = self._training.algorithm in WHOLE_STEP
        self._seen: set[int] = set()
        self._waiting: list[LeasedGroup] = []
        """For the rest of the step, where advantages need all of it."""
        self._again: list[LeasedGroup] = []
        self._replayed: list[Prepared] = []
        self._arrived = 0
        self._lost = 0
        self._totals, self._part = self._fresh_totals(), self._fresh_totals()
        self._updates: list[dict[str, float]] = []
        self._seconds = self._update_seconds = self._store_seconds = 0.0

    def _fresh_totals(self) -> StepTotals:
        return StepTotals(self._training.dead_groups is DeadGroups.EXCLUDE)

    async def run(self, experience: ExperienceClient, compute: Compute) -> None:
        """Train and publish version `step` + 1. JobFailedError: what came must not be trained."""
        began = time.perf_counter()
        await compute.run(self._policy.begin)
        await self._lease_replayed(experience)
        self._order = self._make_order(len(self._again))
        await compute.run(partial(self._prepare, [], self._again))
        self._account = Account(time.perf_counter())
        async with leasing_ahead(partial(self._lease, experience)) as ahead:
            while True:
                await self._work_off(compute)
                if self._order.done:
                    break
                lease = await ahead.take()
                got = time.perf_counter()
                admitted, played = self._admit(lease)
                if len(self._seen) < self._groups:
                    ahead.go_on(lease)
                await compute.run(partial(self._prepare, admitted, []))
                seconds = time.perf_counter() - got
                self._account.arrived(played, seconds, together=self._whole)
        self._store_seconds += self._account.hindered(time.perf_counter())
        await compute.run(partial(self._finish, began))

    async def _lease(self, experience: ExperienceClient, cursor: str) -> Lease:
        return await experience.lease(
            self._name,
            self._epoch,
            self._step,
            cursor,
            max_groups=MAX_GROUPS,
            wait=LEASE_SECONDS,
            lacking=self._wanted(),
        )

    def _wanted(self) -> int:
        """Groups that are worth waiting for a moment, of those that are yet to come."""
        unprepared = len(self._seen) - self._arrived
        return min(self._groups - len(self._seen), max(1, self._order.wanted - unprepared))

    async def _work_off(self, compute: Compute) -> None:
        """Fold and step as far as what has arrived allows."""
        while True:
            began, alone = time.perf_counter(), self._spec.pipeline.overlap and not self._whole
            if chosen := self._order.take():
                await self._fold(chosen, compute)
                needs = [group.arrival for group in chosen] if alone else range(self._arrived)
            elif self._order.ready:
                await compute.run(self._update)
                self._order.advance()
                needs = []
            else:
                return
            self._account.worked(needs, time.perf_counter() - began)

    async def _lease_replayed(self, experience: ExperienceClient) -> None:
        replay = self._spec.pipeline.replay
        if replay is None:
            return
        places = choose(
            self._step,
            self._groups,
            share=replay.share,
            max_age=replay.max_age,
            seed=derive_seed(self._spec.seed, "replay", self._name, self._step),
        )
        self._again, self._store_seconds = await lease_places(
            experience, self._name, self._epoch, places
        )
        for group in self._again:
            self._check(group, group.id.step)
        self._lost = len(places) - len(self._again)
        if self._lost:
            log.warning(
                "groups to be replayed are not in the store any more",
                policy=self._name,
                step=self._step,
                groups=self._lost,
            )

    def _make_order(self, replayed: int) -> StepOrder:
        batch, pipeline = self._spec.batch, self._spec.pipeline
        simulated = self._training.simulated_tokens_per_second is not None
        return StepOrder(
            self._groups,
            replayed,
            batch.updates_per_step,
            batch.micro_batch,
            deterministic=pipeline.deterministic,
            overlap=pipeline.overlap and not self._whole,
            # A simulated fold takes as long as its tokens say, however small it is.
            tokens=1 if simulated else worthwhile_tokens(self._policy.parameters),
        )

    def _admit(self, lease: Lease) -> tuple[list[LeasedGroup], list[float]]:
        """Groups, and when they were played."""
        admitted, moments = list[LeasedGroup](), list[float]()
        for group, played in zip(lease.groups, lease.played, strict=True):
            self._check(group, self._step)
            if group.id.index in self._seen:
                log.warning("group came twice, trained once", group=str(group.id))
                continue
            self._seen.add(group.id.index)
            admitted.append(group)
            moments.append(played)
        return admitted, moments

    def _check(self, group: LeasedGroup, step: int) -> None:
        staleness = self._spec.pipeline.max_staleness
        check_group(group, self._name, step, self._groups, self._vocabulary, staleness=staleness)

    def _prepare(self, own: list[LeasedGroup], again: list[LeasedGroup]) -> None:
        """Turn groups into examples; where that takes the whole step, once it is there."""
        deviations = None
        if self._whole:
            self._waiting += own
            if len(self._waiting) < self._groups:
                return
            own, again = self._waiting, self._again
            deviations = step_deviations(
                [group.columns for group in own + again], self._training.algorithm
            )
        for number, group in enumerate(own + again):
            prepared = prepare(
                group.columns, self._training.algorithm, deviations, comparable=self._comparable
            )
            if number < len(own):
                self._order.add(group.id.index, replace(prepared, arrival=self._arrived))
                self._arrived += 1
            else:
                self._order.add_replayed(number - len(own), prepared)
                self._replayed.append(prepared)

    async def _fold(self, groups: list[Prepared], compute: Compute) -> None:
        began = time.perf_counter()
        await compute.run(partial(self._add, groups))
        rate = self._training.simulated_tokens_per_second
        if rate is not None:
            tokens = sum(group.input_tokens for group in groups)
            left = began + tokens / rate - time.perf_counter()
            await asyncio.sleep(max(0.0, left))
        self._seconds += time.perf_counter() - began

    def _add(self, groups: list[Prepared]) -> None:
        examples = [example for group in groups for example in group.examples]
        moved = bool(self._updates)
        with self._resident.committed_weights() if moved else nullcontext() as began_with:
            sums = self._policy.fold(examples, began_with)
        self._totals.add(groups, sums)
        self._part.add(groups, sums)

    def _update(self) -> None:
        began = time.perf_counter()
        check_gap(self._totals, self._name, self._step, self._training.max_logprob_gap)
        part, self._part = self._part, self._fresh_totals()
        if part.live:
            self._resident.sound = False
            self._updates.append(self._policy.update(part.denominator))
        seconds = time.perf_counter() - began
        self._seconds += seconds
        self._update_seconds += seconds

    def _finish(self, began: float) -> None:
        totals = self._totals
        metrics = totals.metrics() | self._update_metrics() | self._replay_metrics()
        if not totals.live:
            log.warning(
                "nothing to learn from: the weights stay",
                policy=self._name,
                step=self._step,
                dead_groups=totals.dead_groups,
                empty_groups=totals.empty_groups,
            )
        metrics["train_seconds"] = self._seconds
        metrics["update_seconds"] = self._update_seconds
        metrics["wait_seconds"] = time.perf_counter() - began - self._seconds
        metrics["store_seconds"] = self._store_seconds
        self._resident.sound = False
        self._resident.publish(self._step + 1, {"updated": totals.live, "metrics": metrics})
        self._resident.sound = True
        self._record(metrics, time.perf_counter() - began)

    def _update_metrics(self) -> dict[str, float]:
        """Mean gradient norm of the step's updates, and the last one's learning rate."""
        count = len(self._updates)
        if not count:
            return {"optimizer_steps": 0.0}
        return {
            "optimizer_steps": float(count),
            "grad_norm": sum(update["grad_norm"] for update in self._updates) / count,
            "lr": self._updates[-1]["lr"],
        }

    def _replay_metrics(self) -> dict[str, float]:
        if self._spec.pipeline.replay is None:
            return {}
        return {
            "replayed_groups": float(len(self._replayed)),
            "replayed_tokens": float(sum(group.tokens for group in self._replayed)),
            "replay_lost_groups": float(self._lost),
        }

    def _record(self, metrics: dict[str, float], seconds: float) -> None:
        STEP.labels(self._name).observe(seconds)
        COMPUTE.labels(self._name).inc(self._seconds)
        TOKENS.labels(self._name).inc(metrics["tokens"])
        STEPS.labels(self._name, str(self._totals.live).lower()).inc()
        VERSION.labels(self._name).set(self._step + 1)
        GAP.labels(self._name).set(metrics["logprob_gap_mean"])
        STALENESS.labels(self._name).set(metrics["staleness_mean"])
        log.info(
            "step trained",
            policy=self._name,
            step=self._step,
            updated=self._totals.live,
            **{name: float(f"{value:.4g}") for name, value in metrics.items()},
        )
