"""What the `main()` of every process does first and last."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

from prometheus_client import start_http_server

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.reading import load_job
from flexmarl.runtime.logging import configure
from flexmarl.runtime.process import run_until_signalled
from flexmarl.runtime.settings import Settings

Body = Callable[[Settings, MARLJob], Coroutine[Any, Any, None]]


def run(process: str, body: Body) -> None:
    """Read settings and job, set up logging and metrics, run `body` until it ends or a signal."""
    settings = Settings()
    configure(process, settings.log_format, settings.log_level)
    job = load_job(settings.job_file)
    if settings.metrics_port:
        start_http_server(settings.metrics_port)
    gc.freeze()  # what was imported stays; collections need not look at it
    try:
        asyncio.run(run_until_signalled(lambda: body(settings, job)))
    finally:
        gc.unfreeze()  # else native libraries report leaks where the last words should stand
