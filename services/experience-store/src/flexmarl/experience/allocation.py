"""Memory that was freed stays with the process, for the next group.

Groups are megabytes that live for milliseconds. The C library would give each back to the kernel
and fetch it again page by page, which took half of the time of a large lease.
"""

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
KEPT_BYTES = 128 << 20
"""At most, beside what is in use."""
STEP_BYTES = 16 << 20
LARGE_BYTES = 32 << 20
"""From here on memory is fetched for one use alone; the most that the library takes."""
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(LARGE_BYTES),
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    "MALLOC_TOP_PAD_": str(STEP_BYTES),
}
"""The same in the environment of a program that is to be started."""


def keep_freed_memory() -> None:
    """From now on; nothing happens where the C library has no such settings."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_MMAP_THRESHOLD, LARGE_BYTES)
        tune(_TRIM_THRESHOLD, KEPT_BYTES)
        tune(_TOP_PAD, STEP_BYTES)
