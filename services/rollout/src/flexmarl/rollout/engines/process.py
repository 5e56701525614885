"""`flexmarl serve engine`: one inference instance, for a policy or for those that share a pool."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.policy import EngineKind, PolicySpec
from flexmarl.contracts.v1 import engine_pb2_grpc
from flexmarl.rollout.engines.base import Backend, Loaded, WeightsAccess
from flexmarl.rollout.engines.models import PoolModels
from flexmarl.rollout.engines.scheduler import ScheduledEngine
from flexmarl.rollout.engines.server import EngineService
from flexmarl.runtime.errors import InvalidJobError
from flexmarl.runtime.grpc import serving
from flexmarl.runtime.main import run
from flexmarl.runtime.seeds import derive_seed
from flexmarl.runtime.settings import Settings

log = structlog.get_logger()


async def body(settings: Settings, job: MARLJob) -> None:
    """Serve until stopped or broken; the health service says SERVING once it can load weights.

    An untrained policy is loaded from its source as version 0; a trained one waits for weights, an
    engine of a pool for the policy that it is bound to.
    """
    make = partial(make_backend, settings, job)
    if settings.pool:
        policies = [job.spec.policy(name) for name in job.spec.engine_pools[settings.pool]]
        made = ScheduledEngine(None, models=PoolModels(policies, make))
    else:
        policy = job.spec.policy(settings.policy)
        backend = await asyncio.to_thread(make, policy)
        loaded = None
        if not policy.trained:
            checksum = await asyncio.to_thread(backend.checksum)
            loaded = Loaded(policy.name, 0, checksum)
        made = ScheduledEngine(backend, loaded)
    async with (
        made as engine,
        serving(
            lambda server: engine_pb2_grpc.add_EngineServicer_to_server(
                EngineService(engine), server
            ),
            settings.listen,
            token=settings.token,
            drain_seconds=settings.drain_seconds,
        ) as address,
    ):
        log.info("serving", address=address, policy=settings.policy, pool=settings.pool)
        await engine.run()


def make_backend(settings: Settings, job: MARLJob, policy: PolicySpec) -> Backend:
    """What the policy's engine kind asks for; InvalidJobError when its model cannot be built."""
    from flexmarl.models.tokenizer import load_tokenizer

    access = WeightsAccess(settings.shm_dir, job.spec.weight_sync.transport, settings.token)
    tokenizer = load_tokenizer(policy, settings.base_dir)
    match policy.engine.kind:
        case EngineKind.SCRIPTED:
            from flexmarl.rollout.engines.scripted import ScriptedBackend

            return ScriptedBackend(policy.engine.scripted, tokenizer, access)
        case EngineKind.TRANSFORMERS:
            from flexmarl.rollout.engines.building import build

            return build(
                policy,
                settings.base_dir,
                tokenizer,
                derive_seed(job.spec.seed, "model", policy.name),
                access,
                deterministic=job.spec.pipeline.deterministic,
            )
        case kind:
            raise InvalidJobError(f"policy {policy.name}: no engine process serves {kind}")


def main() -> None:
    run("engine", body)
