"""`flexmarl serve weights`: the sidecar that keeps and serves a pod's tensor sets."""

import asyncio

import structlog

from flexmarl.contracts.v1 import weights_pb2_grpc
from flexmarl.runtime.grpc import serving
from flexmarl.runtime.main import run_without_job
from flexmarl.runtime.process import forever
from flexmarl.runtime.settings import Settings
from flexmarl.tensors.holding import Hold, remove_leftovers, remove_unheld
from flexmarl.tensors.server import WeightsService

log = structlog.get_logger()


async def body(settings: Settings) -> None:
    """Serve until stopped.

    At the start what dead jobs left behind goes; the own job's sets stay, for a sidecar that was
    restarted must not cost a living job its state. On SIGTERM the own sets go too, unless a
    trainer or an engine still uses them.
    """
    shm_dir, uid = settings.shm_dir, settings.job_uid
    removed = remove_leftovers(shm_dir, keep=uid)
    if removed:
        log.info("leftovers removed", jobs=removed)
    hold = Hold(shm_dir, uid)
    service = WeightsService(shm_dir, uid)
    try:
        async with serving(
            lambda server: weights_pb2_grpc.add_WeightsServicer_to_server(service, server),
            settings.listen,
            token=settings.token,
            drain_seconds=settings.drain_seconds,
        ) as address:
            log.info("serving", address=address)
            await forever()
    except asyncio.CancelledError:  # a signal; after a crash the sets stay for the next sidecar
        hold.release()
        log.info("sets removed" if remove_unheld(shm_dir, uid) else "sets still in use")
        raise


def main() -> None:
    run_without_job("weights", body)
