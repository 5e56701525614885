"""`flexmarl run`: starts all processes of a job, keeps them running, and leaves nothing behind.

Whatever ends it: the job, a failure, a signal at any moment. Even when the supervisor itself is
killed: the kernel then kills its children, and a guardian removes what they left.
"""

import asyncio
import secrets
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.reading import load_job
from flexmarl.local.crew import Crew
from flexmarl.local.leftovers import forget
from flexmarl.local.plan import LocalLayout, plan_processes
from flexmarl.local.roles import MODULES
from flexmarl.local.rundir import (
    RunLock,
    add_submission,
    last_checkpoint,
    note_failure,
    reopen,
    says_complete,
)
from flexmarl.local.runner import Ended
from flexmarl.tensors.holding import Hold, remove_unheld

LONGEST_TEMPORARY = 30
"""A directory whose name is longer would not leave enough of the 107 bytes of a socket's path."""
SHM_DIR = Path("/dev/shm")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

OnEvent = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. Neither complete nor failed: it was interrupted."""

    complete: bool
    failed_process: str = ""
    exit_code: int = 0
    last_words: tuple[str, ...] = ()
    message: str = ""
    """Why it failed, for a person."""


def run_job(
    job_file: Path,
    *,
    base_dir: Path,
    run_dir: Path,
    resume: bool = False,
    on_event: OnEvent | None = None,
    modules: Mapping[str, str] = MODULES,
) -> Outcome:
    """Run the job to its end. KeyboardInterrupt after a signal, once everything has stopped.

    `resume` goes on from the run's last checkpoint, or from the start when it has none. `on_event`
    hears in words what happens to processes. JobFileError, JobFailedError: nothing was started.
    """
    job = load_job(job_file)
    paths = [path.absolute() for path in (job_file, base_dir, run_dir)]
    outcome = asyncio.run(supervise(job, *paths, resume=resume, on_event=on_event, modules=modules))
    if outcome is None:
        raise KeyboardInterrupt
    return outcome


async def supervise(
    job: MARLJob,
    job_file: Path,
    base_dir: Path,
    run_dir: Path,
    *,
    resume: bool = False,
    on_event: OnEvent | None = None,
    modules: Mapping[str, str] = MODULES,
) -> Outcome | None:
    """`run_job` in an event loop of the main thread, with absolute paths; None after a signal."""
    job_uid = f"l{secrets.token_hex(6)}"
    with stop_signals() as signals, locked(run_dir), shared_memory(SHM_DIR, job_uid):
        before = add_submission(run_dir, job_uid)
        reopen(run_dir)
        checkpoint = last_checkpoint(job, base_dir, run_dir, before) if resume else None
        layout = LocalLayout(
            job_file=job_file,
            base_dir=base_dir,
            run_dir=run_dir,
            sockets=sockets_directory(),
            shm_dir=SHM_DIR,
            job_uid=job_uid,
            token=secrets.token_urlsafe(24),
            store_password=secrets.token_urlsafe(24),
            resume_from=checkpoint,
        )
        say = event_log(run_dir / "logs" / "supervisor.log", on_event)
        if resume:
            say(f"resuming from {checkpoint}" if checkpoint else "no checkpoint yet: starting over")
        crew = Crew(plan_processes(job, layout), layout, modules, say)
        try:
            ended = await crew.run(signals.stop, signals.hurry)
        finally:
            if job.spec.store.url is not None:
                # Those of an earlier submission, too: its supervisor may have been killed.
                await forget(job, base_dir, [*before, job_uid], say, signals.hurry)
    # A signal, or the death of another process, may come between that word and the exit code.
    if says_complete(run_dir):
        return Outcome(complete=True)
    return None if ended is None else outcome_of(ended, run_dir)


def outcome_of(ended: Ended, run_dir: Path) -> Outcome:
    if ended.complete:
        return Outcome(complete=True)
    note_failure(run_dir, ended.message)
    return Outcome(False, ended.process, ended.exit_code, ended.last_words, ended.message)


@dataclass(frozen=True, slots=True)
class Signals:
    stop: asyncio.Event
    hurry: asyncio.Event
    """A second signal: no more waiting for an orderly end."""


@contextmanager
def stop_signals() -> Iterator[Signals]:
    """In the block, signals that mean stop are events instead of exceptions anywhere."""
    loop, signals = asyncio.get_running_loop(), Signals(asyncio.Event(), asyncio.Event())

    def stop() -> None:
        (signals.hurry if signals.stop.is_set() else signals.stop).set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield signals
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """JobFailedError when another supervisor works on `run_dir`."""
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    lock = RunLock(run_dir)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def shared_memory(shm_dir: Path, job_uid: str) -> Iterator[None]:
    """The job's tensor sets are safe from other jobs in the block, and gone after it."""
    hold = Hold(shm_dir, job_uid)
    try:
        yield
    finally:
        hold.release()
        remove_unheld(shm_dir, job_uid)


def sockets_directory() -> Path:
    """A name that nobody has yet, short enough for the paths of sockets in it."""
    base = tempfile.gettempdir()
    parent = Path(base if len(base) <= LONGEST_TEMPORARY else "/tmp")
    return parent / f"flexmarl-{secrets.token_hex(4)}"


def event_log(path: Path, on_event: OnEvent | None) -> Callable[[str], None]:
    """Keeps what happens to processes in a file and tells `on_event`."""

    def say(text: str) -> None:
        with path.open("a") as file:
            file.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ} {text}\n")
        if on_event is not None:
            on_event(text)

    return say
