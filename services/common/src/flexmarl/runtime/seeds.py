"""Every random choice of a job comes from its seed and the names of what is chosen."""

import hashlib


def derive_seed(root: int, *parts: int | str) -> int:
    """A 63-bit seed that is a pure function of `root` and `parts`, equal on every machine."""
    text = "\x1f".join(str(part) for part in (root, *parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
