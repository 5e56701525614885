"""`flexmarl serve trainer`: one training slot."""

import structlog

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.slots import training_slots
from flexmarl.experience.client import ExperienceClient
from flexmarl.runtime import main as runtime
from flexmarl.runtime.errors import InvalidJobError, NotBegunError
from flexmarl.runtime.grpc import serving, wait_ready
from flexmarl.runtime.process import forever
from flexmarl.runtime.settings import Settings
from flexmarl.trainer.compute import Compute
from flexmarl.trainer.server import register
from flexmarl.trainer.slot import Slot

SIDECAR_SECONDS = 120.0
"""How long the weights sidecar, which starts beside this process, may take to answer."""
log = structlog.get_logger()


async def body(settings: Settings, job: MARLJob) -> None:
    """Serve until cancelled; a step in progress is given up, unless it commits already.

    NotBegunError: the weights sidecar does not answer.
    """
    if not settings.experience:
        raise InvalidJobError("FLEXMARL_EXPERIENCE: the address of the experience service is empty")
    async with (
        Compute(sum(training_slots(job.spec).values())) as compute,
        ExperienceClient(settings.experience, settings.token) as experience,
    ):
        if settings.weights:
            await _answers(settings.weights)
        slot = Slot(job.spec, settings, experience, compute)
        try:
            async with serving(
                register(slot),
                settings.listen,
                token=settings.token,
                drain_seconds=settings.drain_seconds,
            ) as address:
                log.info("serving", address=address)
                try:
                    await forever()
                finally:
                    slot.stop()
        finally:
            await slot.close()


async def _answers(weights: str) -> None:
    try:
        await wait_ready(weights, SIDECAR_SECONDS)
    except TimeoutError as error:
        raise NotBegunError(
            f"the weights sidecar at {weights} does not answer in {SIDECAR_SECONDS:g} s"
        ) from error


def main() -> None:
    runtime.run("trainer", body)
