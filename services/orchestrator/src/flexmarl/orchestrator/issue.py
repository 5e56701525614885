"""Which groups of a step to issue, and what a failed one is worth; pure."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Issue:
    """What to do now: `indexes` go to workers, `hopeless` are stored empty."""

    indexes: tuple[int, ...]
    hopeless: tuple[int, ...]


def decide(
    total: int,
    done: Set[int],
    in_flight: Set[int],
    failures: Mapping[int, int],
    *,
    tries: int,
    capacity: int,
) -> Issue:
    """What of the indexes 0..total-1 is to be issued.

    `done` are stored or given up, `in_flight` are being played or wait for their next try,
    `failures` counts what each index failed by its own fault. At most `capacity` are in flight.
    """
    open_ones = [index for index in range(total) if index not in done and index not in in_flight]
    hopeless = tuple(index for index in open_ones if failures.get(index, 0) >= tries)
    room = max(0, capacity - len(in_flight))
    fresh = [index for index in open_ones if failures.get(index, 0) < tries]
    return Issue(tuple(fresh[:room]), hopeless)


class Fault(Enum):
    """Whose fault a failed call is, and so how it goes on."""

    GROUP = auto()
    """That of what was asked (a group, a step): counted, given up after a few tries."""
    PEER = auto()
    """A process is gone, restarting or behind: issued again until the time for it is up."""
    FENCED = auto()
    """The store knows another incarnation: the whole step is looked at again."""
    FATAL = auto()
    """The other side says that the job cannot go on."""


def fault(code: str, text: str = "") -> Fault:
    """The fault behind a status, by its gRPC name and its words."""
    match code:
        case "INTERNAL" if "RST_STREAM" in text:  # gRPC's own word for a connection that broke
            return Fault.PEER
        case "UNAVAILABLE" | "RESOURCE_EXHAUSTED" | "CANCELLED" | "FAILED_PRECONDITION":
            return Fault.PEER
        case "ABORTED":
            return Fault.FENCED
        case "INTERNAL" | "UNAUTHENTICATED" | "UNIMPLEMENTED":
            return Fault.FATAL
        case _:
            return Fault.GROUP


def pause(attempt: int) -> float:
    """Seconds before the next try after the `attempt`-th failure in a row, from 1 on."""
    return float(min(2.0, 0.1 * 2 ** (min(attempt, 10) - 1)))
