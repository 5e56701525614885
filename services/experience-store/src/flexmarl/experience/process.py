"""`flexmarl serve experience`: the service in front of the store."""

import stamina
import structlog

from flexmarl.contracts.job import MARLJob
from flexmarl.experience.allocation import keep_freed_memory
from flexmarl.experience.capacity import check_capacity
from flexmarl.experience.connection import NotAdmittedError, Server
from flexmarl.experience.keys import job_tag
from flexmarl.experience.server import register
from flexmarl.experience.store import Store
from flexmarl.runtime import main as runtime
from flexmarl.runtime.errors import InvalidJobError, NotBegunError, UnavailableError
from flexmarl.runtime.grpc import serving
from flexmarl.runtime.settings import Settings

START_SECONDS = 60.0
"""How long the server may take to answer when the job starts."""
log = structlog.get_logger()


async def body(settings: Settings, job: MARLJob) -> None:
    """Serve until cancelled.

    InvalidJobError: groups would not be safe in the server, or not even short steps fit.
    JobFailedError: a step does not fit. NotBegunError: the server does not answer.
    """
    url = settings.store_url or job.spec.store.url
    if not url:
        raise InvalidJobError("store.url: neither the job nor FLEXMARL_STORE_URL names a server")
    spec, metadata = job.spec, job.metadata
    ca_file = spec.store.ca_file
    async with Store(
        url,
        job_tag(metadata.namespace, metadata.name, settings.job_uid),
        spec.trained_policies,
        max_staleness=spec.pipeline.max_staleness,
        alone=url.startswith("unix:"),
        ca_file=settings.base_dir / ca_file if ca_file else None,
    ) as store:
        try:
            async for attempt in stamina.retry_context(
                on=UnavailableError,
                attempts=None,
                timeout=START_SECONDS,
                wait_initial=0.05,
                wait_max=1.0,
                wait_jitter=0.05,
            ):
                with attempt:
                    server = await _checked(store, waits=url != spec.store.url)
        except UnavailableError as error:
            raise NotBegunError(str(error)) from error
        check_capacity(spec, server.max_memory)
        async with serving(
            register(store),
            settings.listen,
            token=settings.token,
            drain_seconds=settings.drain_seconds,
        ) as address:
            log.info("serving", address=address, store=server.name)
            try:
                await store.serve()
            finally:
                store.release()  # a waiting lease is no reason to drain for long


async def _checked(store: Store, *, waits: bool) -> Server:
    """`waits`: somebody else admits this job to the store, and may do so later."""
    try:
        return await store.check()
    except NotAdmittedError as error:
        if waits:
            raise UnavailableError(str(error)) from error
        raise


def main() -> None:
    keep_freed_memory()
    runtime.run("experience", body)
