"""A training slot behind a real channel, with the real store, experience service and tensors."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import grpc.aio
import numpy as np
import pytest
import torch
from tests.cluster.api import DIES_WITH_US

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import trainer_pb2 as pb
from flexmarl.contracts.v1 import trainer_pb2_grpc as pb_grpc
from flexmarl.contracts.v1 import weights_pb2
from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.samples import (
    GroupId,
    PolicySamples,
    Sequence,
    TurnSpan,
    VersionSpan,
)
from flexmarl.experience.server import register as register_experience
from flexmarl.experience.store import Store
from flexmarl.models.causal_lm import build_model
from flexmarl.runtime.grpc import channel, serving
from flexmarl.runtime.settings import Settings
from flexmarl.tensors.sets import TensorSet
from flexmarl.tensors.torch_bridge import load_into
from flexmarl.trainer.compute import Compute
from flexmarl.trainer.server import register
from flexmarl.trainer.slot import Slot

TOKEN = "job-token"
WAIT = 60.0
PROMPT = np.array([257, 104, 105, 256, 259], np.int32)
LOOSE: dict[str, dict[str, Any]] = {"solver": {"maxLogprobGap": 100.0}}
"""Groups of invented log-probs."""
TINY = "random://llama?hidden=16&layers=1&heads=2"
_uids = itertools.count()


def job(
    policies: dict[str, dict[str, Any]] | None = None, *, dtype: str = "float32", **spec: Any
) -> MARLJob:
    """A job of one agent for each policy."""
    policies = policies or {"solver": {}}
    return MARLJob.model_validate(
        {
            "metadata": {"name": "trainer"},
            "spec": {
                "policies": [
                    {
                        "name": name,
                        "model": {"uri": TINY, "dtype": dtype},
                        "training": {"lr": 1e-2, **training},
                    }
                    for name, training in policies.items()
                ],
                "agents": [{"name": name, "policy": name} for name in policies],
                "workflow": {"entrypoint": "team:Team"},
                "data": {"uri": "gym://chain_sum"},
                "steps": 10,
                **spec,
            },
        }
    )


@pytest.fixture(scope="session")
def store_url() -> Iterator[str]:
    """The embedded store, started as in a job."""
    with tempfile.TemporaryDirectory(prefix="flexmarl-") as directory:
        socket, log = Path(directory) / "store.sock", Path(directory) / "log"
        file = Path(directory) / "job.yaml"
        file.write_text(
            json.dumps(job().model_dump(mode="json", by_alias=True, exclude_unset=True))
        )
        env = os.environ | {
            "FLEXMARL_JOB_FILE": str(file),
            "FLEXMARL_JOB_UID": "unused",
            "FLEXMARL_STORE_URL": f"unix://:secret@{socket}",
        }
        code = "from flexmarl.experience.embedded import main; main()"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*DIES_WITH_US, sys.executable, "-c", code], env=env, stdout=output, stderr=output
            )
        try:
            while not socket.exists():
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            yield env["FLEXMARL_STORE_URL"]
        finally:
            process.terminate()
            process.wait(timeout=60)


@dataclass
class Rig:
    """One job: its slot may be replaced, its store and shared memory stay."""

    job: MARLJob
    settings: Settings
    experience: ExperienceClient
    address: str
    """Of the experience service."""
    incarnation: int
    slot: Slot = field(init=False)

    async def epoch(self, policy: str = "solver") -> int:
        return await self.experience.take_epoch(policy, self.incarnation)

    @asynccontextmanager
    async def serving(
        self, experience: ExperienceClient | None = None, job: MARLJob | None = None
    ) -> AsyncIterator[pb_grpc.TrainerAsyncStub]:
        async with Compute() as compute:
            self.slot = Slot(
                (job or self.job).spec, self.settings, experience or self.experience, compute
            )
            try:
                async with (
                    serving(
                        register(self.slot), "127.0.0.1:0", token=TOKEN, drain_seconds=0.1
                    ) as address,
                    channel(address, TOKEN) as connection,
                ):
                    yield pb_grpc.TrainerStub(connection)
            finally:
                await self.slot.close()

    async def append(self, step: int, index: int, rows: list[Sequence], policy: str = "") -> None:
        """One group: `rows` for the policy, an empty marker for all others."""
        policy = policy or self.job.spec.trained_policies[0]
        assert await self.experience.append_group(
            GroupId(self.incarnation, step, index),
            f"task-{index}",
            [
                PolicySamples(name, oldest(rows, step), tuple(rows))
                if name == policy
                else PolicySamples(name, step)
                for name in self.job.spec.trained_policies
            ],
        )

    def elsewhere(self, shm_dir: Path) -> Rig:
        """The same job as a pod with a shared memory of its own sees it."""
        shm_dir.mkdir()
        return replace(self, settings=self.settings.model_copy(update={"shm_dir": shm_dir}))

    def rows(
        self,
        step: int,
        index: int,
        tokens: list[int],
        rewards: list[float | None],
        *,
        logprobs: list[float] | None = None,
        agent: str = "solver",
        version: int | None = None,
        temperature: float = 1.0,
        truncated: bool = False,
    ) -> list[Sequence]:
        """Episodes of one sampled token each after the same prompt."""
        group = GroupId(self.incarnation, step, index)
        length = len(PROMPT) + 1
        rows = []
        for episode, (token, reward) in enumerate(zip(tokens, rewards, strict=True)):
            mask, probs = np.zeros(length, np.uint8), np.zeros(length, np.float32)
            mask[-1], probs[-1] = 1, (logprobs or [-5.5] * len(tokens))[episode]
            span = VersionSpan(step if version is None else version, 0, 1)
            turn = TurnSpan(
                len(PROMPT), length, (span,), "length", temperature, truncated=truncated
            )
            rows.append(
                Sequence(
                    id=group.sequence_id(episode, agent, 0),
                    agent=agent,
                    episode=episode,
                    token_ids=np.append(PROMPT, np.int32(token)),
                    loss_mask=mask,
                    logprobs=probs,
                    turns=(turn,),
                    reward=reward,
                )
            )
        return rows

    async def distribution(self, weights: weights_pb2.WeightsRef) -> torch.Tensor:
        """Log-probs [V] after the prompt, as an engine that loads these weights has them."""
        name = weights.set.rsplit(".", 1)[1]
        model = build_model(self.job.spec.policy(name), Path(), seed=99)
        found, _, transport = await load_into(model, weights, self.settings.shm_dir)
        assert (found, transport) == (weights.checksum, "shm")
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(PROMPT.astype(np.int64))[None]).logits
        return torch.log_softmax(logits[0, -1], -1)


def oldest(rows: list[Sequence], step: int) -> int:
    spans = [span for row in rows for turn in row.turns for span in turn.versions]
    return min((span.version for span in spans), default=step)


class Rigs:
    """Makes rigs; all of them end with the test."""

    def __init__(self, stack: AsyncExitStack, url: str, root: Path) -> None:
        self._stack, self._url, self._root = stack, url, root

    async def __call__(self, policies: dict[str, dict[str, Any]] | None = None, **spec: Any) -> Rig:
        described, uid = job(policies, **spec), f"trainer-{next(_uids)}"
        shm = self._root / "shm"
        shm.mkdir(exist_ok=True)
        store = await self._stack.enter_async_context(
            Store(
                self._url,
                uid,
                described.spec.trained_policies,
                max_staleness=described.spec.pipeline.max_staleness,
            )
        )
        await store.check()
        address = await self._stack.enter_async_context(
            serving(register_experience(store), "127.0.0.1:0", token=TOKEN, drain_seconds=0.1)
        )
        client = await self._stack.enter_async_context(ExperienceClient(address, TOKEN))
        settings = Settings(
            job_file=self._root / "job.yaml",
            base_dir=self._root,
            job_uid=uid,
            token=TOKEN,
            shm_dir=shm,
            weights="unix:///sidecar.sock",
        )
        return Rig(described, settings, client, address, await client.take_incarnation())


@pytest.fixture
async def rigs(store_url: str, tmp_path: Path) -> AsyncIterator[Rigs]:
    async with AsyncExitStack() as stack:
        yield Rigs(stack, store_url, tmp_path)


async def fill(rig: Rig, step: int, groups: int, seed: int = 0, *, shuffled: bool = False) -> None:
    """`groups` groups of four episodes that depend on nothing but the seed."""
    order = list(range(groups))
    if shuffled:
        Random(seed).shuffle(order)
    for index in order:
        await fill_one(rig, step, index, seed)


async def fill_one(rig: Rig, step: int, index: int, seed: int = 0) -> None:
    random = Random(f"{seed}/{step}/{index}")
    tokens = [random.randrange(256) for _ in range(4)]
    rewards: list[float | None] = [random.random() for _ in range(4)]
    await rig.append(step, index, rig.rows(step, index, tokens, rewards))


def state_of(rig: Rig, policy: str = "solver") -> dict[str, bytes]:
    """Every byte of the committed state, moments and all."""
    name = f"{rig.settings.job_uid}.{policy}"
    with TensorSet.open(rig.settings.shm_dir, name) as tensors, tensors.reading() as views:
        return {name: bytes(view) for name, view in views.items()}


def version_of(rig: Rig, policy: str = "solver") -> int:
    """Committed in shared memory."""
    with TensorSet.open(rig.settings.shm_dir, f"{rig.settings.job_uid}.{policy}") as tensors:
        commit = tensors.committed()
        assert commit is not None
        return commit.version


async def until(condition: Callable[[], bool]) -> None:
    """Returns once it holds."""
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110  # nothing tells when
            await asyncio.sleep(0.01)


def bind(policy: str = "solver", epoch: int = 1, **fields: Any) -> pb.BindRequest:
    return pb.BindRequest(policy=policy, epoch=epoch, **fields)


def train(step: int, groups: int, policy: str = "solver", epoch: int = 1) -> pb.TrainStepRequest:
    return pb.TrainStepRequest(policy=policy, epoch=epoch, step=step, groups=groups)


def refused(error: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> tuple[Any, str]:
    return error.value.code(), str(error.value.details())
