"""Errors a caller may act on; everything else is a bug and is left to crash."""

import grpc


class FlexMARLError(Exception):
    """Base of every error raised on purpose. As a bug, it is the fault of what was asked for."""

    code = grpc.StatusCode.UNKNOWN


class InvalidRequestError(FlexMARLError):
    """The request can never succeed as it is."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class InvalidJobError(InvalidRequestError):
    """The job file, its data or its code cannot be used; the text names the field and the value."""


class NotFoundError(FlexMARLError):
    """What was asked for does not exist."""

    code = grpc.StatusCode.NOT_FOUND


class StalePolicyError(FlexMARLError):
    """Another policy version than the one asked for is loaded; ask again with the right one."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class FencedError(FlexMARLError):
    """A newer incarnation or epoch has taken over; the caller must stop."""

    code = grpc.StatusCode.ABORTED


class UnauthenticatedError(FlexMARLError):
    """The call carried no valid job token."""

    code = grpc.StatusCode.UNAUTHENTICATED


class UnavailableError(FlexMARLError):
    """Try again later."""

    code = grpc.StatusCode.UNAVAILABLE


class NotBegunError(UnavailableError):
    """A process cannot begin, for what it needs does not answer yet: it is to be started again."""


class FullError(UnavailableError):
    """The store, or whoever holds groups for it, is out of room; producers wait."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class CorruptError(FlexMARLError):
    """Stored bytes are not what was written; they must not be used."""

    code = grpc.StatusCode.DATA_LOSS


class JobFailedError(FlexMARLError):
    """The job cannot go on; the text says why and what to do."""

    code = grpc.StatusCode.INTERNAL
