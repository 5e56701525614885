"""One training slot: which policy it is bound to, with which epoch, and what it may be told.

Calls go one at a time. A policy is let go whenever its epoch turns out to be over, or when anything
goes wrong between the optimizer's step and the commit: what is in shared memory is then the truth.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from flexmarl.contracts.job import MARLJobSpec
from flexmarl.contracts.v1 import weights_pb2
from flexmarl.experience.capacity import kept_steps
from flexmarl.experience.client import ExperienceClient
from flexmarl.runtime.errors import (
    FencedError,
    InvalidRequestError,
    StalePolicyError,
    UnavailableError,
)
from flexmarl.runtime.settings import Settings
from flexmarl.tensors.sets import Commit
from flexmarl.trainer import checkpoint
from flexmarl.trainer.admission import incomparable_agents
from flexmarl.trainer.advantage import WHOLE_STEP
from flexmarl.trainer.compute import Compute
from flexmarl.trainer.home import Home, Resident, serves
from flexmarl.trainer.step import Step

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Trained:
    """What a step came to, now or when it was first asked for."""

    weights: weights_pb2.WeightsRef
    updated: bool
    metrics: Mapping[str, float]


@dataclass(slots=True)
class _Bound:
    resident: Resident
    epoch: int

    @property
    def name(self) -> str:
        return self.resident.policy.spec.name


class Slot:
    """What the Trainer service delegates to."""

    def __init__(
        self, spec: MARLJobSpec, settings: Settings, experience: ExperienceClient, compute: Compute
    ) -> None:
        self._spec, self._settings = spec, settings
        self._experience, self._compute = experience, compute
        self._home = Home(spec, settings, compute.fit)
        self._bound: _Bound | None = None
        self._lock = asyncio.Lock()
        self._warned: set[str] = set()
        self._running: asyncio.Future[None] | None = None
        self._stopping = False

    async def bind(
        self,
        policy: str,
        epoch: int,
        version: int,
        directory: str,
        *,
        discard: bool,
        kept: bool = False,
        checksum: str = "",
    ) -> weights_pb2.WeightsRef:
        """Take the policy; FencedError when there is a later epoch of it."""
        if policy not in self._spec.trained_policies:
            raise InvalidRequestError(f"no trained policy {policy!r} in this job")
        async with self._lock:
            # Before anything is let go or undone: the store knows who was replaced.
            await self._experience.check_epoch(policy, epoch)
            bound = self._bound
            if bound is not None and bound.name == policy:
                if bound.epoch > epoch:
                    raise FencedError(f"policy {policy} is bound with epoch {bound.epoch}")
                if serves(bound.resident.commit, version, discard=discard):
                    bound.epoch = epoch
                    return self._ref(bound.resident.commit)
            await self._let_go()

            def take() -> Commit:
                resident = self._home.take(
                    policy, version, directory, discard=discard, kept=kept, checksum=checksum
                )
                # Here, not by the caller, who may be cancelled: nobody else would let go again.
                self._bound = _Bound(resident, epoch)
                return resident.commit

            commit = await self._compute.run(take)
            self._warn(policy)
            log.info("bound", policy=policy, epoch=epoch, version=commit.version)
            return self._ref(commit)

    async def unbind(self, policy: str, epoch: int) -> None:
        """Let go; nothing happens when the policy is not bound. FencedError: epoch is over."""
        async with self._lock:
            bound = self._bound
            if bound is None or bound.name != policy:
                return
            if bound.epoch > epoch:
                raise FencedError(f"policy {policy} is bound with epoch {bound.epoch}")
            await self._let_go()
            log.info("unbound", policy=policy, epoch=epoch)

    async def train_step(self, policy: str, epoch: int, step: int, groups: int) -> Trained:
        """Train a step of `groups` groups, or acknowledge it when it is in the state already.

        FencedError: a newer epoch has taken over. StalePolicyError: not bound so, or at another
        version. JobFailedError: the step must not be trained, or diverged.
        """
        updates = self._spec.batch.updates_per_step
        if groups < 1 or groups % updates:
            raise InvalidRequestError(
                f"{groups} groups: a step has at least one, and equally many in each of its "
                f"{updates} updates"
            )
        async with self._lock:
            bound = self._require(policy, epoch)
            resident = bound.resident
            if resident.commit.version < step:
                raise StalePolicyError(
                    f"policy {policy} is at version {resident.commit.version}; step {step} "
                    "trains that version"
                )
            try:
                if resident.commit.version == step:
                    work = Step(resident, self._spec, epoch=epoch, step=step, groups=groups)
                    await self._interruptible(work.run(self._experience, self._compute))
                else:
                    log.info("step is in the state already", policy=policy, step=step)
                began = time.perf_counter()
                await self._experience.commit(policy, epoch, step, keep=kept_steps(self._spec))
                committing = time.perf_counter() - began
            except FencedError:
                await self._let_go()
                log.warning("fenced: a newer epoch has taken over", policy=policy, epoch=epoch)
                raise
            finally:
                if not resident.sound:
                    self._bound = None
                    await self._compute.run(resident.tensors.close)
            return self._trained(resident.commit, step, committing)

    async def save_checkpoint(
        self, policy: str, epoch: int, directory: str
    ) -> tuple[int, list[str]]:
        """Write the committed state as `directory`: its version and the names of its files.

        FencedError: a newer epoch has taken over, and the directory is its.
        """
        path = Path(directory)
        if not path.is_absolute():
            raise InvalidRequestError(f"{directory!r} is no absolute path")
        async with self._lock:
            resident = self._require(policy, epoch).resident
            made = checkpoint.Made(resident.policy, path, epoch)
            try:
                await self._experience.check_epoch(policy, epoch)
                files = await self._compute.run(partial(made.write, resident.commit.metadata))
                # Once more: a machine may have stood still over all of it.
                await self._experience.check_epoch(policy, epoch)
                await self._compute.run(made.put_in_place)
            except FencedError:
                await self._compute.run(made.forget)
                await self._let_go()
                log.warning("fenced: a newer epoch has taken over", policy=policy, epoch=epoch)
                raise
            log.info("checkpoint saved", policy=policy, version=resident.commit.version)
            return resident.commit.version, files

    def stop(self) -> None:
        """End a step in progress: its groups stay in the store, the next slot trains it anew."""
        self._stopping = True
        if self._running is not None:
            self._running.cancel()

    async def close(self) -> None:
        """Let go of shared memory."""
        async with self._lock:
            await self._let_go()

    async def _interruptible(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`; UnavailableError when `stop` ends it, once its thread is quiet."""
        if self._stopping:
            work.close()
            raise UnavailableError("this training slot is shutting down")
        self._running = asyncio.ensure_future(work)
        try:
            await self._running
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._stopping and task is not None and not task.cancelling():
                raise UnavailableError("this training slot is shutting down") from None
            raise
        finally:
            self._running = None

    def _require(self, policy: str, epoch: int) -> _Bound:
        bound = self._bound
        if bound is None or bound.name != policy or bound.epoch < epoch:
            raise StalePolicyError(f"policy {policy} is not bound here with epoch {epoch}")
        if bound.epoch > epoch:
            raise FencedError(f"policy {policy} is bound with epoch {bound.epoch}, not {epoch}")
        return bound

    async def _let_go(self) -> None:
        bound, self._bound = self._bound, None
        if bound is not None:
            await self._compute.run(partial(self._home.park, bound.resident))

    def _trained(self, commit: Commit, step: int, committing: float) -> Trained:
        known = commit.metadata if commit.version == step + 1 else {}
        metrics = dict(known.get("metrics", {}))
        if "store_seconds" in metrics:
            metrics["store_seconds"] += committing
        return Trained(self._ref(commit), bool(known.get("updated", False)), metrics)

    def _ref(self, commit: Commit) -> weights_pb2.WeightsRef:
        assert self._bound is not None
        return weights_pb2.WeightsRef(
            set=self._bound.resident.tensors.name,
            version=commit.version,
            checksum=commit.checksum,
            address=self._settings.weights,
        )

    def _warn(self, policy: str) -> None:
        if policy in self._warned:
            return
        self._warned.add(policy)
        algorithm = self._spec.policy(policy).training.algorithm
        if algorithm in WHOLE_STEP and self._spec.pipeline.overlap:
            log.info(
                "overlap is off: advantages are whitened over the whole step",
                policy=policy,
                algorithm=algorithm.value,
            )
        for agent, reason in incomparable_agents(self._spec, policy).items():
            log.warning(
                "log-probs of this agent cannot be compared with training: its tokens are trained "
                "with ratio 1 and without the gap check",
                policy=policy,
                agent=agent,
                reason=reason,
            )
