"""The clock of this process, and what its callers are told of it (see `clocks`)."""

from __future__ import annotations

import secrets
import time

from flexmarl.contracts.v1 import experience_pb2 as pb

CLOCK_ID = secrets.randbits(63) + 1
"""Another one after a restart, whose clock may be that of another machine."""

now = time.monotonic


def stamp(received: float) -> pb.Clock:
    """Of a call that came at that moment and is being answered."""
    return pb.Clock(id=CLOCK_ID, received=received, answered=now())
