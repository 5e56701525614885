"""What the supervisor needs of Linux: parent-death signals, sessions, exits without a thread."""

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_libc = ctypes.CDLL(None, use_errno=True)
ORPHANED = 70
"""Exit code of a process that finds its supervisor gone when it starts."""
FAULTHANDLER = re.compile(r"Timeout \(\d+:\d\d:\d\d(\.\d+)?\)!")
"""First line of the stacks that `faulthandler` writes when a process has stood still for long."""
MOST_STACK_LINES = 200


def _prctl(option: int, argument: object) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def tie_to_parent(parent: int, name: str, sig: signal.Signals = signal.SIGKILL) -> None:
    """From now on this process, called `name`, is sent `sig` when `parent` dies."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name[:15].encode()))
    _prctl(_PR_SET_PDEATHSIG, sig)
    if os.getppid() != parent:  # it died before we asked
        os._exit(ORPHANED)


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """In the block, children whose parent ends become children of this process."""
    before = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def spawn(
    arguments: Sequence[str], environment: Mapping[str, str], log: Path, *, stdin: int | None = None
) -> int:
    """Start a Python process in a session of its own, its output appended to `log`; its pid."""
    actions: list[tuple[object, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        if stdin is None
        else (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(
        sys.executable,
        [sys.executable, *arguments],
        dict(environment),
        file_actions=actions,
        setsid=True,
    )


class Child:
    """A running child process; `ended` becomes its exit code (negative: the signal)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = loop.create_future()
        self._pidfd = os.pidfd_open(pid)
        loop.add_reader(self._pidfd, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._kill_group()  # before the pid is free for others: what it started ends with it
        _, status = os.waitpid(self.pid, 0)
        self.ended.set_result(os.waitstatus_to_exitcode(status))

    def terminate(self) -> None:
        if not self.ended.done():
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if not self.ended.done():
            self._kill_group()
            os.kill(self.pid, signal.SIGKILL)  # also where it has no group of its own yet

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def last_lines(log: Path, start: int, count: int = 20) -> list[str]:
    """The last lines that are not empty of what was written to `log` behind byte `start`.

    Of a process that stood still: the stacks of all its threads, since any may be the cause.
    """
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - (64 << 10)))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    stalled = next((n for n, line in enumerate(lines) if FAULTHANDLER.fullmatch(line)), None)
    return lines[-count:] if stalled is None else lines[stalled : stalled + MOST_STACK_LINES]


def child_pids() -> set[int]:
    """All children of this process, zombies too."""
    me, found = str(os.getpid()), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                stat = (entry / "stat").read_text()
                if stat.rpartition(")")[2].split()[1] == me:  # behind the name: state, parent
                    found.add(int(entry.name))
    return found


def end(pid: int) -> None:
    """Kill a child that nobody waits for; reaps it when it has ended. Call it until it is gone."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)
