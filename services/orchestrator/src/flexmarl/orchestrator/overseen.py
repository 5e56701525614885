"""How long the trainers may take with a step whose groups are all played."""

from __future__ import annotations

import asyncio
import time

import structlog

from flexmarl.orchestrator.step import Step
from flexmarl.orchestrator.training import Order, Trained, Training
from flexmarl.runtime.errors import JobFailedError

log = structlog.get_logger()


async def overseen(
    step: Step, order: Order, training: Training, seconds: float
) -> dict[str, Trained]:
    """What the trainers say of the step.

    When they are not done `seconds` after its last group they are bound anew, once: a new epoch
    reads the step from its start, where an older one waits for ever for what lies before its place
    in it, as after a store's clock was set back. JobFailedError: nothing comes of the step.
    """
    for again in (True, False):
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(training.step(order))
            over = tasks.create_task(_over(step, training, seconds))
            await asyncio.wait({asked, over}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            over.cancel()
        if not asked.cancelled():
            return asked.result()
        if again:
            log.warning("trainers are not done, bound anew", step=step.number, seconds=seconds)
            training.let_go()
    raise JobFailedError(
        f"step {step.number}: all its groups are played, the trainers were bound anew, and "
        f"{seconds:g} s later they are not done; see their logs"
    )


async def _over(step: Step, training: Training, seconds: float) -> None:
    """Return when their time is: from when all groups were there, without that in which a trainer
    is away, whom `training` waits for, or groups that the store lost are played again.

    JobFailedError: no episode could be scored.
    """
    await step.complete.wait()
    step.must_have_scored()
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        if training.away() or not step.complete.is_set():
            until = now + seconds
        await asyncio.sleep(min(seconds / 10, 1.0))
