"""The training slots: which policy each is bound to, and one step of all policies.

A slot with one policy stays bound to it. A slot with several takes them in turns within each step.
Any doubt about a slot (it restarted, refuses an epoch) ends in a bind with a new epoch: the state
is in shared memory, so that costs at most the step in progress.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc.aio
import structlog
from prometheus_client import Counter

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import trainer_pb2
from flexmarl.contracts.v1.weights_pb2 import WeightsRef
from flexmarl.orchestrator.bind import homes, next_policy
from flexmarl.orchestrator.calls import StateLostError, fault_of, says
from flexmarl.orchestrator.checkpoint import Checkpoint, Saved
from flexmarl.orchestrator.issue import Fault, pause
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.services import Services
from flexmarl.runtime.errors import JobFailedError

BINDS = Counter("flexmarl_orchestrator_binds_total", "Bindings of slots to policies.", ["policy"])

T = TypeVar("T")
Published = Callable[[str, WeightsRef], None]
"""Told of every version that a trainer has published, at once."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Standing:
    """What a bind asks for: the version that the job stands at, and where else it lies."""

    version: int
    checkpoint: Checkpoint | None
    """At exactly this version."""
    discard: bool
    """The job begins or rolled back: what shared memory holds of other versions is not to be used.
    Otherwise shared memory must hold the policies."""


@dataclass(frozen=True, slots=True)
class Order:
    """One step, as it is asked of every policy."""

    standing: Standing
    """Its version is the step's number."""
    groups: int
    directory: Path | None
    """Where the trained states are to be saved, a folder per policy; None: not this time."""
    waiting: Callable[[], Mapping[str, int]]
    """How much work each policy has now."""
    published: Published


@dataclass(frozen=True, slots=True)
class Trained:
    updated: bool
    metrics: dict[str, float]
    saved: Saved | None
    seconds_saving: float


class Training:
    """Binds and trains; one incarnation long."""

    def __init__(
        self,
        job: MARLJob,
        services: Services,
        limits: Limits,
        incarnation: int,
        epochs: dict[str, int],
    ) -> None:
        """`epochs`: the last ones known, by policy; updated here, kept by the caller."""
        self._services, self._limits, self._epochs = services, limits, epochs
        self._incarnation = incarnation
        policies = job.spec.trained_policies
        self._homes = homes(policies, services.slots) if policies else []
        self._bound: list[str | None] = [None] * len(self._homes)
        self._followed: set[str] = set()
        """Policies that stand where the job does: from now on their shared memory is right."""
        self._failing: dict[int, str] = {}
        """Slots that are not bound for the reason that is said."""
        self.weights: dict[str, WeightsRef] = {}
        """What each policy has published last."""

    def away(self) -> list[str]:
        """Trainers that are tried again and again, with what was said last."""
        return [self._failing[slot] for slot in sorted(self._failing)]

    def let_go(self) -> None:
        """Whatever slots hold, each is bound anew before it is asked again."""
        self._bound = [None] * len(self._homes)

    async def bind_all(self, standing: Standing) -> None:
        """Bind every policy once, so that all weights are published. StateLostError: one is not
        at the version that the job stands at."""

        async def slot(number: int) -> None:
            for policy in self._homes[number]:
                await self._persist(number, policy, partial(self._bind, number, policy, standing))

        async with asyncio.TaskGroup() as group:
            for number in range(len(self._homes)):
                group.create_task(slot(number))

    async def step(self, order: Order) -> dict[str, Trained]:
        """Train the step's groups in every policy; what came of each."""
        results: dict[str, Trained] = {}

        async def slot(number: int) -> None:
            while policy := next_policy(
                self._homes[number], self._bound[number], order.waiting(), results.keys()
            ):
                results[policy] = await self._persist(
                    number, policy, partial(self._train, number, policy, order)
                )

        async with asyncio.TaskGroup() as group:
            for number in range(len(self._homes)):
                group.create_task(slot(number))
        return results

    def longest(self, seconds: Mapping[str, float]) -> float:
        """Of what each policy took of its slot, which trains its policies in turn."""
        return max(
            (sum(seconds.get(each, 0.0) for each in home) for home in self._homes), default=0
        )

    async def save_all(self, standing: Standing, directory: Path) -> dict[str, Saved]:
        """Have every policy save the version that the job stands at."""
        results: dict[str, Saved] = {}

        async def one(number: int, policy: str) -> None:
            await self._bind(number, policy, standing)
            version = standing.version
            results[policy] = await self._save(number, policy, version, directory / policy)

        async def slot(number: int) -> None:
            for policy in self._homes[number]:
                await self._persist(number, policy, partial(one, number, policy))

        async with asyncio.TaskGroup() as group:
            for number in range(len(self._homes)):
                group.create_task(slot(number))
        return results

    async def _persist(self, slot: int, policy: str, call: Callable[[], Awaitable[T]]) -> T:
        """What `call` returns, tried again over restarts of the trainer, else JobFailedError."""
        attempt, crashes, since = 0, 0, None
        while True:
            started = time.monotonic()
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                self._bound[slot] = None  # whatever it holds now: the next try binds anew
                now, where = time.monotonic(), f"trainer {slot}, policy {policy}: {says(error)}"
                if since is None or now - started > self._limits.worked:
                    attempt, since = 0, now  # a new trouble, not the old one going on
                attempt += 1
                fault = fault_of(error)
                if fault is Fault.FATAL:
                    raise JobFailedError(where) from error
                if fault is Fault.GROUP:
                    crashes += 1
                    if crashes >= self._limits.crashes:
                        raise JobFailedError(f"{where} ({crashes} times)") from error
                if now - since > self._limits.unreachable:
                    seconds = f"{self._limits.unreachable:g} s"
                    raise JobFailedError(f"{where} (failing for {seconds})") from error
                self._failing[slot] = where
                log.warning("trainer fails, binding again", slot=slot, policy=policy, error=where)
                # A refused epoch is mended by the next one.
                await asyncio.sleep(pause(1 if fault is Fault.FENCED else attempt))

    async def _bind(self, slot: int, policy: str, standing: Standing) -> None:
        """Have `slot` hold `policy`, letting go of another first."""
        stub, bound = self._services.trainers[slot], self._bound[slot]
        if bound == policy:
            return
        if bound is not None:
            self._bound[slot] = None
            await stub.Unbind(
                trainer_pb2.UnbindRequest(policy=bound, epoch=self._epochs[bound]),
                timeout=self._limits.bind,
            )
        discard = standing.discard and policy not in self._followed
        saved = standing.checkpoint
        if saved is not None and saved.step != standing.version:
            saved = None
        request = trainer_pb2.BindRequest(
            policy=policy,
            epoch=await self._epoch(policy),
            version=standing.version,
            checkpoint=saved.policy(policy) if saved else "",
            checksum=saved.checksums[policy] if saved else "",
            discard=discard,
            # Lost memory is a reason to fall back even if a checkpoint has the very same version:
            # other policies' weights may be gone with it, and groups be acknowledged already.
            kept=not discard,
        )
        try:
            response = await stub.Bind(request, timeout=self._limits.bind)
        except grpc.aio.AioRpcError as error:
            text = f"trainer {slot}, policy {policy}: {says(error)}"
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise JobFailedError(text) from error
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise StateLostError(text) from error
            raise
        BINDS.labels(policy).inc()
        self._failing.pop(slot, None)
        found = response.weights.version
        ahead = 0 if discard else 1  # it may have trained the step before anyone heard of it
        if not standing.version <= found <= standing.version + ahead:
            raise StateLostError(
                f"policy {policy} is at version {found}, the job at {standing.version}"
            )
        self._bound[slot] = policy
        self._followed.add(policy)
        self.weights[policy] = response.weights

    async def _epoch(self, policy: str) -> int:
        """A new epoch, above any that we know of even if the store forgot them."""
        known = self._epochs.get(policy, 0)
        epoch = 0
        while epoch <= known:
            epoch = await self._services.experience.take_epoch(policy, self._incarnation)
        self._epochs[policy] = epoch
        return epoch

    async def _train(self, slot: int, policy: str, order: Order) -> Trained:
        await self._bind(slot, policy, order.standing)
        step = order.standing.version
        response = await self._services.trainers[slot].TrainStep(
            trainer_pb2.TrainStepRequest(
                policy=policy, epoch=self._epochs[policy], step=step, groups=order.groups
            ),
            timeout=self._limits.train_step,
        )
        if response.weights.version != step + 1:
            raise StateLostError(
                f"policy {policy} is at version {response.weights.version} after step {step}"
            )
        self.weights[policy] = response.weights
        order.published(policy, response.weights)
        saved, started = None, time.monotonic()
        if order.directory is not None:
            saved = await self._save(slot, policy, step + 1, order.directory / policy)
        return Trained(response.updated, dict(response.metrics), saved, time.monotonic() - started)

    async def _save(self, slot: int, policy: str, version: int, directory: Path) -> Saved:
        response = await self._services.trainers[slot].SaveCheckpoint(
            trainer_pb2.SaveCheckpointRequest(
                policy=policy, epoch=self._epochs[policy], directory=str(directory)
            ),
            timeout=self._limits.save,
        )
        if response.version != version:
            raise StateLostError(f"policy {policy} saved version {response.version}, not {version}")
        files = tuple(str((directory / file).relative_to(directory)) for file in response.files)
        return Saved(version, self.weights[policy].checksum, files)
