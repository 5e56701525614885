"""Which turns an engine takes; pure."""

import math
from collections.abc import Sequence

from flexmarl.rollout.engines.base import Limits, Sampling, Turn, TurnRequest
from flexmarl.runtime.errors import InvalidRequestError


def checked(requests: Sequence[TurnRequest], limits: Limits) -> list[Turn]:
    """A turn for each request, its max_tokens capped to the context.

    InvalidRequestError names the first turn that can never run; then none may.
    """
    if not requests:
        raise InvalidRequestError("no turns")
    if len({request.id for request in requests}) != len(requests):
        raise InvalidRequestError("two turns of one call have the same id")
    turns = []
    for request in requests:
        if problem := _problem(request, limits):
            raise InvalidRequestError(f"turn {request.id}: {problem}")
        room = limits.context - len(request.prompt_ids)
        turns.append(Turn(request, min(request.sampling.max_tokens, room)))
    return turns


def _problem(request: TurnRequest, limits: Limits) -> str | None:
    prompt = request.prompt_ids
    if not len(prompt):
        return "prompt_ids is empty"
    if request.resumed >= len(prompt):
        return f"a prompt of {len(prompt)} tokens has not {request.resumed} of the turn's behind it"
    if len(prompt) >= limits.context:
        return f"a prompt of {len(prompt)} tokens leaves no room in a context of {limits.context}"
    if int(prompt.min()) < 0 or int(prompt.max()) >= limits.vocab_size:
        return f"a prompt id is outside the vocabulary of {limits.vocab_size}"
    return _sampling_problem(request.sampling)


def _sampling_problem(sampling: Sampling) -> str | None:
    if sampling.max_tokens < 1:
        return "max_tokens is 0"
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        return f"temperature is {sampling.temperature}"
    if not 0 < sampling.top_p <= 1:
        return f"top_p is {sampling.top_p}, not in (0, 1]; 1 is off"
    if sampling.top_k < 0:
        return f"top_k is {sampling.top_k}"
    return None
