"""What a failed call to another process means for the job."""

from __future__ import annotations

import grpc
import grpc.aio

from flexmarl.orchestrator.issue import Fault, fault
from flexmarl.runtime.errors import FencedError, FlexMARLError, InvalidJobError, JobFailedError


class StateLostError(FlexMARLError):
    """Policies do not stand at the same step any more: the whole job rolls back."""


class StoreLostError(FlexMARLError):
    """The store lost what it held of this step; it is played again where it stands."""

    def __init__(self, message: str, *, above: int = 0) -> None:
        """`above`: an incarnation that somebody knows and the store does not."""
        super().__init__(message)
        self.above = above


def says(error: grpc.aio.AioRpcError) -> str:
    """The server's own words, or the status when it had none."""
    return str(error.details() or error.code().name)


def fault_of(error: grpc.aio.AioRpcError) -> Fault:
    """Whose fault the failed call is."""
    return fault(error.code().name, says(error))


def cause(error: BaseException) -> BaseException:
    """The error that ended a task group: a bug if there is one, else the gravest of ours."""
    leaves = _leaves(error)
    return min(leaves, key=_gravity)


def _gravity(error: BaseException) -> int:
    order = (JobFailedError, InvalidJobError, FencedError, StateLostError, StoreLostError)
    if not isinstance(error, FlexMARLError):
        return 0
    ranks = [rank for rank, kind in enumerate(order, start=1) if isinstance(error, kind)]
    return ranks[0] if ranks else len(order) + 1


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]
