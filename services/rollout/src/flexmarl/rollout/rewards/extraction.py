"""Finds the answer in what an agent wrote.

The user's pattern meets whatever a model writes, and may then take for ever: it runs beside the
event loop, without the interpreter's lock, and is stopped after its time.
"""

from __future__ import annotations

from functools import partial

import regex

from flexmarl.contracts.base import Model
from flexmarl.contracts.problems import FieldPath, Problem, show
from flexmarl.rollout.border import OverdueError
from flexmarl.rollout.plugins import JobCodeError
from flexmarl.rollout.rewards.errors import RewardTimeoutError
from flexmarl.rollout.rewards.threads import DaemonThreads

_AROUND_WORDS = ".,;:!?\"'`*()[]{}"


class Extraction(Model):
    """Which part of a text is the answer; by default all of it, stripped."""

    extract: str | None = None
    """A regular expression; its first group, or all of it, where it matches last."""
    last_token: bool = False
    """The last word, without punctuation around it."""


class Extractor:
    """Applies an `Extraction`."""

    def __init__(self, config: Extraction, path: FieldPath) -> None:
        """`path` is the field that configures it; JobCodeError for what is no pattern."""
        self._last_token = config.last_token
        self._pattern: regex.Pattern[str] | None = None
        self._threads = DaemonThreads("extract")
        if config.extract is not None:
            try:
                self._pattern = regex.compile(config.extract, regex.DOTALL)
            except regex.error as error:
                raise JobCodeError(
                    Problem((*path, "extract"), f"{show(config.extract)}: {error}")
                ) from error

    async def find(self, text: str, seconds: float) -> str | None:
        """The answer in `text`; None: there is none. RewardTimeoutError after `seconds`."""
        if self._pattern is not None:
            search = partial(last_match, self._pattern, text, seconds)
            try:
                found = await self._threads.run(search, seconds + 1.0)
            except (TimeoutError, OverdueError) as error:
                raise RewardTimeoutError(
                    f"extract {show(self._pattern.pattern)} took more than {seconds} s"
                ) from error
            if found is None:
                return None
            text = found
        if self._last_token:
            words = text.split()
            return words[-1].strip(_AROUND_WORDS) if words else None
        return text.strip()


def last_match(pattern: regex.Pattern[str], text: str, seconds: float) -> str | None:
    """The first group, or all, of the last match. TimeoutError; other threads run meanwhile."""
    match = None
    for found in pattern.finditer(text, timeout=seconds, concurrent=True):
        match = found
    if match is None:
        return None
    group: str | None = match[1] if pattern.groups else None
    return match[0] if group is None else group
