"""One training step: leases the step's groups as they arrive, folds them, steps, publishes."""

import time
from functools import partial

import structlog
from prometheus_client import Counter, Gauge, Histogram

from flexmarl.contracts.job import MARLJobSpec
from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.samples import LeasedGroup
from flexmarl.trainer.accumulate import FoldOrder, StepTotals, worthwhile_tokens
from flexmarl.trainer.admission import check_gap, check_group, incomparable_agents
from flexmarl.trainer.batch import Prepared, prepare
from flexmarl.trainer.compute import Compute
from flexmarl.trainer.home import Resident

log = structlog.get_logger()

LEASE_SECONDS = 1.0
"""How long one lease waits: a slot that was fenced notices within this time."""
MAX_GROUPS = 256
"""Of one lease."""

STEP = Histogram("flexmarl_trainer_step_seconds", "Lease to publication.", ["policy"])
COMPUTE = Counter("flexmarl_trainer_compute_seconds_total", "Spent computing.", ["policy"])
TOKENS = Counter("flexmarl_trainer_tokens_total", "Trained tokens.", ["policy"])
STEPS = Counter("flexmarl_trainer_steps_total", "Published versions.", ["policy", "updated"])
VERSION = Gauge("flexmarl_trainer_version", "Version of the policy.", ["policy"])
GAP = Gauge("flexmarl_trainer_logprob_gap_nats", "Mean gap to the engine's.", ["policy"])


class Step:
    """Step `step` of one policy, once."""

    def __init__(
        self, resident: Resident, spec: MARLJobSpec, *, epoch: int, step: int, groups: int
    ) -> None:
        self._resident, self._spec = resident, spec
        self._policy, self._name = resident.policy, resident.policy.spec.name
        self._epoch, self._step, self._groups = epoch, step, groups
        self._truncated = incomparable_agents(spec, self._name)
        self._vocabulary = self._policy.forward.vocabulary
        self._totals, self._seconds = StepTotals(), 0.0
        self._seen: set[int] = set()
        self._order = FoldOrder(
            groups,
            spec.batch.micro_batch,
            deterministic=spec.pipeline.deterministic,
            overlap=spec.pipeline.overlap,
            tokens=worthwhile_tokens(self._policy.parameters),
        )

    async def run(self, experience: ExperienceClient, compute: Compute) -> None:
        """Train and publish version `step` + 1. JobFailedError: what came must not be trained."""
        began = time.perf_counter()
        await compute.run(self._policy.begin)
        cursor = ""
        while not self._order.done:
            if self._order.missing:
                lease = await experience.lease(
                    self._name,
                    self._epoch,
                    self._step,
                    cursor,
                    max_groups=MAX_GROUPS,
                    wait=LEASE_SECONDS,
                )
                cursor = lease.cursor
                groups = self._admit(lease.groups)
                await compute.run(partial(self._prepare, groups))
            while chosen := self._order.take():
                await compute.run(partial(self._fold, chosen))
        await compute.run(partial(self._finish, began))

    def _admit(self, leased: tuple[LeasedGroup, ...]) -> list[LeasedGroup]:
        admitted = []
        for group in leased:
            check_group(group, self._name, self._step, self._groups, self._vocabulary)
            if group.id.index in self._seen:
                log.warning("group came twice, trained once", group=str(group.id))
                continue
            self._seen.add(group.id.index)
            admitted.append(group)
        return admitted

    def _prepare(self, groups: list[LeasedGroup]) -> None:
        algorithm = self._policy.spec.training.algorithm
        for group in groups:
            prepared = prepare(group.samples.sequences, algorithm, self._truncated)
            self._order.add(group.id.index, prepared)

    def _fold(self, groups: list[Prepared]) -> None:
        began = time.perf_counter()
        sums = self._policy.fold([example for group in groups for example in group.examples])
        self._totals.add(groups, sums)
        self._seconds += time.perf_counter() - began

    def _finish(self, began: float) -> None:
        folded = time.perf_counter()
        totals, training = self._totals, self._policy.spec.training
        check_gap(totals, self._name, self._step, training.max_logprob_gap)
        metrics = totals.metrics()
        self._resident.sound = False
        if totals.live:
            metrics |= self._policy.update(totals.sums.tokens)
        else:
            log.warning(
                "nothing to learn from: the weights stay",
                policy=self._name,
                step=self._step,
                dead_groups=totals.dead_groups,
                empty_groups=totals.empty_groups,
            )
        stepped = time.perf_counter()
        self._seconds += stepped - folded
        metrics["train_seconds"] = self._seconds
        metrics["wait_seconds"] = stepped - began - self._seconds
        self._resident.publish(self._step + 1, {"updated": totals.live, "metrics": metrics})
        self._resident.sound = True
        self._record(metrics, time.perf_counter() - began)

    def _record(self, metrics: dict[str, float], seconds: float) -> None:
        STEP.labels(self._name).observe(seconds)
        COMPUTE.labels(self._name).inc(self._seconds)
        TOKENS.labels(self._name).inc(metrics["tokens"])
        STEPS.labels(self._name, str(self._totals.live).lower()).inc()
        VERSION.labels(self._name).set(self._step + 1)
        GAP.labels(self._name).set(metrics["logprob_gap_mean"])
        log.info(
            "step trained",
            policy=self._name,
            step=self._step,
            updated=self._totals.live,
            **{name: float(f"{value:.4g}") for name, value in metrics.items()},
        )
