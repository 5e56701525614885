"""The file of a tensor set: where what lies, how it is made, locked and accessed in order."""

import fcntl
import os
import struct
import threading
from pathlib import Path

from flexmarl.runtime.errors import JobFailedError, UnavailableError
from flexmarl.tensors.holding import still_named
from flexmarl.tensors.layout import Layout

MAGIC = b"FLEXMARL-TENSORS"
FORMAT = 1
PAGE = 4096
RECORD_BYTES = 256 << 10
"""Room for a version's record: checksum and metadata as JSON."""

# The header, in 8-byte words. Records follow it, then the layout, then the two buffers.
FORMAT_WORD, SEQUENCE, WRITING, LAYOUT_BYTES, BUFFER_BYTES, BUFFERS_AT = range(2, 8)
RECORD_HEAD = struct.Struct("<QQ")  # bytes, xxh3-64


def lock_for_writing(path: Path, *, create: bool) -> int | None:
    """The file at `path`, its writer's lock taken; None when there is none to open."""
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise UnavailableError(f"another process writes the tensor set at {path}") from None
        if still_named(fd, path):
            return fd
        os.close(fd)


def initialise(fd: int, shm_dir: Path, name: str, layout: Layout) -> None:
    text = layout.to_json().encode()
    buffers_at = -(-(PAGE + 2 * RECORD_BYTES + len(text)) // PAGE) * PAGE
    buffer_bytes = -(-layout.nbytes // PAGE) * PAGE
    total = buffers_at + 2 * buffer_bytes
    os.ftruncate(fd, 0)  # a creator that was killed may have left something
    try:
        os.posix_fallocate(fd, 0, total)  # all pages now: later there is no error, only SIGBUS
    except OSError as error:
        space = os.statvfs(shm_dir)
        raise JobFailedError(
            f"tensor set {name!r} needs {total / 2**20:.1f} MiB in {shm_dir}, which has "
            f"{space.f_bavail * space.f_frsize / 2**20:.1f} MiB free ({error.strerror}): "
            "give it more (on a cluster: shm.size) or train a smaller model"
        ) from error
    words = [FORMAT, 0, 0, len(text), buffer_bytes, buffers_at]
    os.pwrite(fd, text, PAGE + 2 * RECORD_BYTES)
    os.pwrite(fd, MAGIC + struct.pack("=6Q", *words), 0)


_fence_lock = threading.Lock()


def fence() -> None:
    """Order the memory accesses before it and after it, also on weakly ordered processors."""
    for _ in range(2):  # a release followed by an acquire; one pair alone lets both sides slip in
        with _fence_lock:
            pass
