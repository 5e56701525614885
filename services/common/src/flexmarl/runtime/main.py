"""What the `main()` of every process does first and last."""

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from prometheus_client import start_http_server

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.reading import load_job
from flexmarl.runtime.errors import InvalidJobError, JobFailedError
from flexmarl.runtime.logging import configure
from flexmarl.runtime.process import HOPELESS, run_until_signalled
from flexmarl.runtime.settings import Settings

Body = Callable[[Settings, MARLJob], Coroutine[Any, Any, None]]


def run(process: str, body: Body) -> None:
    """Read settings and job, set up logging and metrics, run `body` until it ends or a signal.

    Exits with HOPELESS when `body` finds that the job cannot be used or go on.
    """
    settings = Settings()
    configure(process, settings.log_format, settings.log_level)
    job = load_job(settings.job_file)
    if settings.metrics_port:
        start_http_server(settings.metrics_port)
    gc.freeze()  # what was imported stays; collections need not look at it
    try:
        asyncio.run(run_until_signalled(lambda: body(settings, job)))
    except BaseExceptionGroup as errors:
        hopeless, others = errors.split((InvalidJobError, JobFailedError))
        if hopeless is None or others is not None:
            raise
        print(" ".join(str(_first(hopeless)).splitlines()), file=sys.stderr)
        sys.exit(HOPELESS)
    finally:
        gc.unfreeze()  # else native libraries report leaks where the last words should stand


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
