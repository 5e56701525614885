"""Cleans up when the supervisor is killed: runs as a file of its own, without site or packages.

Told on standard input which processes live (+PID, -PID). When the supervisor ends without `bye`,
their process groups are killed and the given paths removed; `DIR/NAME*` stands for all such files.
"""

import contextlib
import glob
import os
import shutil
import signal
import sys
import time

WAIT_SECONDS = 5


def main() -> None:
    """Arguments: the paths to remove."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    living: set[int] = set()
    for line in sys.stdin:
        text = line.strip()
        if text == "bye":
            return
        (living.add if text[0] == "+" else living.discard)(int(text[1:]))
    deadline = time.monotonic() + WAIT_SECONDS
    while living and time.monotonic() < deadline:
        living = {pid for pid in living if _kill(pid)}
        time.sleep(0.02)
    for pattern in sys.argv[1:]:
        for path in glob.glob(pattern):
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)


def _kill(pid: int) -> bool:
    """Kill a process group; whether there was one."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
