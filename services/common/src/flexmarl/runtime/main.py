"""What the `main()` of every process does first and last."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import structlog
from prometheus_client import start_http_server
from pydantic import ValidationError

from flexmarl.contracts.preparation import PASSING
from flexmarl.contracts.problems import JobFileError
from flexmarl.runtime.errors import (
    InvalidJobError,
    JobFailedError,
    NotBegunError,
    UnavailableError,
)
from flexmarl.runtime.logging import configure
from flexmarl.runtime.names import RESOLVER, with_whole_names
from flexmarl.runtime.process import HOPELESS, run_until_signalled
from flexmarl.runtime.settings import Settings

if TYPE_CHECKING:
    from flexmarl.contracts.job import MARLJob

HOPELESS_ERRORS = (InvalidJobError, JobFailedError, JobFileError)
Body: TypeAlias = "Callable[[Settings, MARLJob], Coroutine[Any, Any, None]]"

log = structlog.get_logger()


def run(process: str, body: Body) -> None:
    """Read settings and job, set up logging and metrics, run `body` until it ends or a signal.

    Exits with HOPELESS when the job cannot be used or go on.
    """
    with hopeless_exit():
        settings, job = begin(process)
        _run(settings, lambda: body(settings, job))


def run_without_job(process: str, body: Callable[[Settings], Coroutine[Any, Any, None]]) -> None:
    """`run` of a process that has no use for the job: its models are a third of a start."""
    with hopeless_exit():
        settings = settle(process)
        _run(settings, lambda: body(settings))


def _run(settings: Settings, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    serve_metrics(settings.metrics_port)
    gc.freeze()  # what was imported stays; collections need not look at it
    try:
        asyncio.run(run_until_signalled(body))
    finally:
        gc.unfreeze()  # else native libraries report leaks where the last words should stand


def serve_metrics(port: int) -> None:
    """On every address of the machine, IPv6 as well; 0: nowhere."""
    if port:
        start_http_server(port, "::" if socket.has_dualstack_ipv6() else "0.0.0.0")


def begin(process: str) -> tuple[Settings, MARLJob]:
    """Settings and job of this process, its logging set up; InvalidJobError, JobFileError."""
    from flexmarl.contracts.reading import served_job

    settings = settle(process)
    job, unknown = served_job(settings.job_file)
    if unknown:
        log.warning("fields of another release are left out", fields=unknown)
    return settings, job


def settle(process: str) -> Settings:
    """Settings of this process, its logging set up; InvalidJobError."""
    try:
        settings = Settings()
    except ValidationError as error:
        raise misconfigured(error, "FLEXMARL_") from None
    configure(process, settings.log_format, settings.log_level)
    if RESOLVER.is_file():
        settings = with_whole_names(settings, RESOLVER.read_text(errors="replace"))
    return settings


def misconfigured(error: ValidationError, prefix: str) -> InvalidJobError:
    """What is wrong in the environment, by the names that stand there."""
    wrong = [
        f"{prefix}{'_'.join(map(str, one['loc'])).upper()}: {one['msg']}"
        for one in error.errors(include_url=False)
    ]
    return InvalidJobError("; ".join(wrong))


@contextmanager
def hopeless_exit() -> Iterator[None]:
    """Ends the process for errors that are no bug, the last line says which: with HOPELESS when no
    restart mends it, with PASSING when what it needs to begin does not answer, with 1 when that
    ceased to."""
    try:
        yield
    except* HOPELESS_ERRORS as errors:
        reason, code = str(_first(errors)), HOPELESS
    except* UnavailableError as errors:  # what a restart may mend outranks what it does not
        first = _first(errors)
        reason, code = str(first), PASSING if isinstance(first, NotBegunError) else 1
    else:
        return
    print(" ".join(reason.split()), file=sys.stderr)
    sys.exit(code)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
