"""The rollout worker's process: plays groups until it is told to stop, then drains."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.policy import PolicySpec
from flexmarl.experience.allocation import keep_freed_memory
from flexmarl.experience.client import ExperienceClient
from flexmarl.models.tokenizer import known_vocabulary, load_tokenizer
from flexmarl.rollout.border import exits
from flexmarl.rollout.engine_pool import EnginePool
from flexmarl.rollout.filters import filter_seconds, make_filter
from flexmarl.rollout.player import EpisodePlayer
from flexmarl.rollout.plugins import add_code_path
from flexmarl.rollout.prompts import PromptEncoder
from flexmarl.rollout.rewards.runner import Reward, make_reward
from flexmarl.rollout.server import register
from flexmarl.rollout.stall import dying_when_stalled
from flexmarl.rollout.storing import Store
from flexmarl.rollout.unawaited import contained
from flexmarl.rollout.worker import Worker
from flexmarl.rollout.workflows.base import Workflow
from flexmarl.rollout.workflows.registry import make_workflow
from flexmarl.runtime.errors import InvalidJobError
from flexmarl.runtime.grpc import serving
from flexmarl.runtime.main import run
from flexmarl.runtime.process import forever
from flexmarl.runtime.settings import Settings, secret

if TYPE_CHECKING:
    from flexmarl.rollout.external import ExternalPolicy

log = structlog.get_logger()

STALL_SECONDS = 60.0
"""How long the user's code may keep the interpreter to itself, at least."""


def main() -> None:
    keep_freed_memory()
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request
    run("rollout-worker", serve)


async def serve(settings: Settings, job: MARLJob) -> None:
    """Serve until cancelled. InvalidJobError when the job's code cannot be used."""
    longest = job.spec.reward.timeout if job.spec.reward else 0.0
    async with (
        dying_when_stalled(max(longest, STALL_SECONDS)),
        ExperienceClient(settings.experience, settings.token) as store,
        working(job, settings.base_dir, settings.token, store) as worker,
        serving(
            register(worker),
            settings.listen,
            token=settings.token,
            drain_seconds=settings.drain_seconds,
        ) as address,
    ):
        log.info("serving", address=address)
        await forever()


@asynccontextmanager
async def working(job: MARLJob, base_dir: Path, token: str, store: Store) -> AsyncIterator[Worker]:
    """A worker with everything that it holds: the user's code, connections, scorers."""
    spec = job.spec
    agents = [agent.name for agent in spec.agents]
    add_code_path(spec.code, base_dir)
    workflow = make_workflow(spec.workflow, agents)
    reward = make_reward(spec.reward, agents) if spec.reward else None
    chosen = spec.pipeline.filter
    keep = make_filter(chosen, filter_seconds(spec.reward)) if chosen else None
    async with AsyncExitStack() as stack:
        stack.enter_context(contained())
        for part in (workflow, reward):
            if part is not None:
                stack.push_async_callback(partial(_close, part))
                with exits():
                    await part.start()
        externals = {
            policy.name: await stack.enter_async_context(_external(policy))
            for policy in spec.policies
            if policy.external
        }
        encoders = {
            policy.name: _encoder(policy, base_dir)
            for policy in spec.policies
            if not policy.external
        }
        pool = await stack.enter_async_context(EnginePool(token, spec.workflow.timeout))
        player = EpisodePlayer(workflow, reward, agents, spec.workflow.timeout)
        yield Worker(
            spec,
            player,
            encoders=encoders,
            externals=externals,
            pool=pool,
            store=store,
            keep=keep,
        )


async def _close(part: Workflow | Reward) -> None:
    try:
        with exits():
            await part.close()
    except Exception as error:  # the user's: anything may be raised, and the worker ends anyhow
        log.error("code of the job did not close", exc_info=error)


def _encoder(policy: PolicySpec, base_dir: Path) -> PromptEncoder:
    tokenizer = load_tokenizer(policy, base_dir)
    return PromptEncoder(tokenizer, vocabulary=known_vocabulary(policy, tokenizer))


def _external(policy: PolicySpec) -> ExternalPolicy:
    from flexmarl.rollout.external import ExternalPolicy

    args = policy.engine.openai
    if args is None:
        raise InvalidJobError(f"policy {policy.name!r}: engine.openai is missing")
    key = None
    if args.api_key_env is not None:
        key = secret(args.api_key_env)
        if key is None:
            raise InvalidJobError(
                f"policy {policy.name!r}: engine.openai.apiKeyEnv: the worker has no environment "
                f"variable {args.api_key_env!r}"
            )
    return ExternalPolicy(policy.name, args, key)
