"""`flexmarl serve orchestrator`: the job itself. Its exit code is the job's outcome.

0: complete. 3: failed for a reason that a restart cannot mend, which is the last line on stderr.
143: told to stop before the end. Anything else is a crash, and the next start takes over.
"""

import sys
from dataclasses import dataclass

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import orchestrator_pb2_grpc
from flexmarl.orchestrator.desk import Desk, DeskService
from flexmarl.orchestrator.run import run_job
from flexmarl.runtime import main as runtime
from flexmarl.runtime.grpc import serving
from flexmarl.runtime.settings import Settings

STOPPED = 143


@dataclass(slots=True)
class Process:
    """Knows after the end whether the job was complete."""

    complete: bool = False

    async def body(self, settings: Settings, job: MARLJob) -> None:
        desk = Desk()
        async with serving(
            lambda server: orchestrator_pb2_grpc.add_OrchestratorServicer_to_server(
                DeskService(desk), server
            ),
            settings.listen,
            token=settings.token,
            drain_seconds=settings.drain_seconds,
        ):
            await run_job(job, settings, desk=desk)
        self.complete = True


def main() -> None:
    process = Process()
    runtime.run("orchestrator", process.body)
    if not process.complete:
        sys.exit(STOPPED)
