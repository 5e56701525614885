"""Where the state of the policies in training lives between two calls: shared memory, or files.

The committed version in shared memory survives this process. A version is committed by one flip,
weights, optimizer and the step's metrics together, so a step is in the state or it is not.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import torch

from flexmarl.contracts.job import MARLJobSpec
from flexmarl.models.causal_lm import build_model
from flexmarl.models.tokenizer import load_tokenizer
from flexmarl.runtime.errors import InvalidRequestError, NotFoundError
from flexmarl.runtime.seeds import derive_seed
from flexmarl.runtime.settings import Settings
from flexmarl.tensors.holding import set_name
from flexmarl.tensors.layout import WEIGHTS
from flexmarl.tensors.sets import Commit, TensorSet
from flexmarl.tensors.torch_bridge import as_tensors, commit, layout_of
from flexmarl.trainer import checkpoint
from flexmarl.trainer.checkpoint import weights_of
from flexmarl.trainer.loss import correction_of
from flexmarl.trainer.policy import TrainedPolicy
from flexmarl.trainer.warm_start import warm_start

log = structlog.get_logger()

PARKED_BYTES = 1 << 30
"""Models of policies that are not bound now are kept, so that a swap is a copy: up to this size
together, those that were bound last."""


@dataclass(slots=True)
class Resident:
    """A policy in this process together with its place in shared memory."""

    policy: TrainedPolicy
    tensors: TensorSet
    commit: Commit
    sound: bool = True
    """Whether the policy in this process is the committed one, or on its way from it: no longer
    from the optimizer's step until its commit."""

    def publish(self, version: int, metadata: dict[str, Any]) -> None:
        """Commit the policy's state as `version`: all of it or, killed at any point, none."""
        self.commit = commit(self.tensors, version, self.policy.state(), metadata)
        self.policy.version = version

    @contextmanager
    def committed_weights(self) -> Iterator[dict[str, torch.Tensor]]:
        """The weights that the step began with, by their names in the model; not for later use."""
        layout = self.tensors.layout.below(WEIGHTS)
        with self.tensors.reading(self.commit.version) as views:
            yield weights_of(as_tensors(layout, {name: views[name] for name in layout.tensors}))


@dataclass(frozen=True, slots=True)
class _Parked:
    policy: TrainedPolicy
    commit: Commit
    """What the policy is."""
    nbytes: int


def serves(found: Commit, version: int, *, discard: bool) -> bool:
    """Whether a committed state is what a binding at `version` asks for."""
    return found.version == version or (found.version > version and not discard)


class Home:
    """Finds, makes and parks states. Everything here blocks: call it in the compute thread."""

    def __init__(self, spec: MARLJobSpec, settings: Settings, fit: Callable[[int], None]) -> None:
        """`fit` is told the parameters of a policy before anything is computed with it."""
        self._spec, self._settings, self._fit = spec, settings, fit
        self._parked: dict[str, _Parked] = {}

    def take(
        self,
        name: str,
        version: int,
        directory: str,
        *,
        discard: bool,
        kept: bool = False,
        checksum: str = "",
    ) -> Resident:
        """The policy's state at `version` or, unless `discard`, later: what Bind promises.

        NotFoundError: neither shared memory nor `directory` has it and it is not version 0; shared
        memory does not have it, and it was `kept` there.
        """
        parked = self._parked.pop(name, None)
        while sum(other.nbytes for other in self._parked.values()) > PARKED_BYTES:
            del self._parked[next(iter(self._parked))]
        policy = self._build(name) if parked is None else parked.policy
        self._fit(policy.parameters)
        tensors = TensorSet.create(
            self._settings.shm_dir,
            set_name(self._settings.job_uid, name),
            layout_of(policy.state()),
        )
        try:
            found = tensors.committed()
            if found is not None and serves(found, version, discard=discard):
                if parked is None or found != parked.commit:
                    self._restore(policy, tensors, found)
                return Resident(policy, tensors, found)
            if kept:
                raise NotFoundError(
                    f"policy {name}: version {version} is no longer in shared memory"
                )
            unsaved = Commit(version, "", {})
            if directory:
                metadata = checkpoint.load(policy, Path(directory), checksum)
                if policy.version != version:
                    raise InvalidRequestError(
                        f"{directory}: version {policy.version} of policy {name}, not {version}"
                    )
                log.info("state read", policy=name, version=version, checkpoint=directory)
            elif version == 0:
                policy, metadata = policy if parked is None else self._build(name), {}
                if policy.spec.training.warm_start is not None:
                    warm_start(policy, self._spec, self._settings.base_dir)
            else:
                raise NotFoundError(
                    f"policy {name}: version {version} is neither in shared memory nor saved"
                )
            resident = Resident(policy, tensors, unsaved)
            resident.publish(version, metadata)
            return resident
        except BaseException:
            tensors.close()
            raise

    def park(self, resident: Resident) -> None:
        """Let go of the shared memory's lock; keep a sound model until `take` needs its room."""
        resident.tensors.close()
        size = resident.tensors.layout.nbytes
        if resident.sound:
            name = resident.policy.spec.name
            self._parked[name] = _Parked(resident.policy, resident.commit, size)

    def _restore(self, policy: TrainedPolicy, tensors: TensorSet, found: Commit) -> None:
        tensors.verify()
        with tensors.reading(found.version) as views:
            policy.restore(found.version, as_tensors(tensors.layout, views))
        log.info("state read", policy=policy.spec.name, version=found.version, shared=True)

    def _build(self, name: str) -> TrainedPolicy:
        spec, base_dir = self._spec.policy(name), self._settings.base_dir
        tokenizer = load_tokenizer(spec, base_dir)
        torch.manual_seed(derive_seed(self._spec.seed, "trainer", name))
        seed = derive_seed(self._spec.seed, "model", name)
        return TrainedPolicy(
            spec,
            build_model(spec, base_dir, seed, tokenizer),
            tokenizer,
            correction_of(spec.training, self._spec.pipeline),
        )
