"""Which groups to issue, and what a failed one is worth; pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from flexmarl.orchestrator.admission import Place


@dataclass(frozen=True, slots=True)
class Issue:
    """What to do with those that wait: `go` in this order; `hopeless` are stored empty."""

    go: tuple[Place, ...]
    hopeless: tuple[Place, ...]


def decide(waiting: Iterable[Place], failures: Mapping[Place, int], *, tries: int) -> Issue:
    """What of the `waiting` groups is to be issued, the earliest place first.

    `failures` counts what each failed by its own fault.
    """
    ordered = sorted(waiting)
    return Issue(
        go=tuple(place for place in ordered if failures.get(place, 0) < tries),
        hopeless=tuple(place for place in ordered if failures.get(place, 0) >= tries),
    )


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
