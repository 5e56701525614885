"""The services of a job, all but the orchestrator, whose part the bench plays itself."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import yaml

from flexmarl.contracts.api import API_VERSION
from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.reading import load_job
from flexmarl.contracts.v1 import engine_pb2_grpc, rollout_pb2_grpc, trainer_pb2, trainer_pb2_grpc
from flexmarl.contracts.v1.engine_pb2 import LoadWeightsRequest
from flexmarl.contracts.v1.weights_pb2 import WeightsRef
from flexmarl.experience.client import ExperienceClient
from flexmarl.local.crew import Crew
from flexmarl.local.plan import LocalLayout, plan_processes
from flexmarl.local.roles import MODULES
from flexmarl.local.supervisor import SHM_DIR, shared_memory, sockets_directory
from flexmarl.runtime.errors import JobFailedError
from flexmarl.runtime.grpc import channel, wait_ready

START_SECONDS = 180.0
CALL_SECONDS = 600.0
POLICY = "policy"
AGENT = "agent"


def bench_job(
    model: Mapping[str, Any], batch: Mapping[str, Any], max_tokens: int, steps: int
) -> dict[str, Any]:
    """A job document of one policy and one agent; nothing in it plays by itself."""
    return {
        "apiVersion": API_VERSION,
        "kind": "MARLJob",
        "metadata": {"name": "bench"},
        "spec": {
            "policies": [{"name": POLICY, "model": dict(model), "training": {"lr": 1e-5}}],
            "agents": [
                {"name": AGENT, "policy": POLICY, "sampling": {"maxTokens": max_tokens}},
            ],
            "workflow": {"name": "single"},
            "reward": {"name": "exact-match"},
            "data": {"uri": "file://none.jsonl"},
            "steps": steps,
            "batch": dict(batch),
        },
    }


@dataclass(frozen=True, slots=True)
class Stack:
    """What a bench talks to; stubs of roles that were left out are connected to nothing."""

    job: MARLJob
    base_dir: Path
    experience: ExperienceClient
    engine: engine_pb2_grpc.EngineAsyncStub
    engine_address: str
    worker: rollout_pb2_grpc.RolloutAsyncStub
    trainer: trainer_pb2_grpc.TrainerAsyncStub
    incarnation: int
    epoch: int
    weights: WeightsRef
    """Version 0, as the trainer made it."""


@asynccontextmanager
async def services(document: Mapping[str, Any], without: Collection[str]) -> AsyncIterator[Stack]:
    """Start the processes of `document` but the roles in `without`; stop all at the end.

    The trainer has made version 0 and, where there is one, the engine has loaded it.
    JobFailedError: a process died.
    """
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flexmarl-bench-")))
        job_file = directory / "job.yaml"
        job_file.write_text(yaml.safe_dump(dict(document)))
        layout = LocalLayout(
            job_file=job_file,
            base_dir=directory,
            run_dir=directory,
            sockets=sockets_directory(),
            shm_dir=SHM_DIR,
            job_uid=f"b{secrets.token_hex(6)}",
            token=secrets.token_urlsafe(24),
            store_password=secrets.token_urlsafe(24),
        )
        (directory / "logs").mkdir()
        stack.enter_context(shared_memory(SHM_DIR, layout.job_uid))
        job = load_job(job_file)
        plans = [
            plan
            for plan in plan_processes(job, layout)
            if plan.role not in {"orchestrator", *without}
        ]
        await stack.enter_async_context(running(Crew(plans, layout, MODULES, lambda _: None)))
        addresses = {plan.name: layout.address(plan.name) for plan in plans if plan.role != "store"}
        async with asyncio.TaskGroup() as group:
            for address in addresses.values():
                group.create_task(wait_ready(address, START_SECONDS))

        async def connect(name: str) -> grpc.aio.Channel:
            return await stack.enter_async_context(channel(layout.address(name), layout.token))

        experience = await stack.enter_async_context(
            ExperienceClient(addresses["experience"], layout.token)
        )
        trainer: trainer_pb2_grpc.TrainerAsyncStub = trainer_pb2_grpc.TrainerStub(
            await connect("trainer-0")
        )
        engine_name = f"engine-{POLICY}-0"
        engine: engine_pb2_grpc.EngineAsyncStub = engine_pb2_grpc.EngineStub(
            await connect(engine_name)
        )
        incarnation = await experience.take_incarnation()
        epoch = await experience.take_epoch(POLICY, incarnation)
        bound = await trainer.Bind(
            trainer_pb2.BindRequest(policy=POLICY, epoch=epoch), timeout=CALL_SECONDS
        )
        if "engine" not in without:
            await engine.LoadWeights(
                LoadWeightsRequest(policy=POLICY, weights=bound.weights), timeout=CALL_SECONDS
            )
        yield Stack(
            job=job,
            base_dir=directory,
            experience=experience,
            engine=engine,
            engine_address=layout.address(engine_name),
            worker=rollout_pb2_grpc.RolloutStub(await connect("rollout-worker-0")),
            trainer=trainer,
            incarnation=incarnation,
            epoch=epoch,
            weights=bound.weights,
        )


@asynccontextmanager
async def running(crew: Crew) -> AsyncIterator[None]:
    """The crew beside the block, which is cancelled when a process ends for good."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    async def watch() -> None:
        ended = await crew.run(stop, hurry)
        if ended is not None:
            raise JobFailedError(ended.message)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        try:
            yield
        finally:
            stop.set()
