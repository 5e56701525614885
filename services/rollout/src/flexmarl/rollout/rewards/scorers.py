"""Scorers say what a text is worth as an answer to a task: exact match, mathematics, reasoning-gym.

Workflows use them on single answers; `flexmarl.rollout.rewards.builtin` makes rewards of them.
Those that parse what a model wrote with foreign code run in processes that can be killed.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from flexmarl.contracts.base import Model, Seconds
from flexmarl.contracts.problems import FieldPath, Problem, nearest, one_of, show
from flexmarl.rollout.needs import Need
from flexmarl.rollout.plugins import JobCodeError, configured
from flexmarl.rollout.rewards.extraction import Extraction, Extractor
from flexmarl.rollout.rewards.scoring_pool import ScoringPool

Record = Mapping[str, Any]


class ScorerChoice(Model):
    """A scorer by name, as part of another configuration."""

    name: str = "exact-match"
    config: dict[str, Any] = Field(default_factory=dict)
    timeout: Seconds = 30


class Scorer:
    """Base of all scorers."""

    Config: ClassVar[type[Model]] = Extraction

    def __init__(self, config: Any, path: FieldPath, timeout: float) -> None:
        """`path` is the field that configures it, `timeout` what one score may take, in seconds."""
        self.config = config
        self.path = path
        self.timeout = timeout

    def needs(self) -> Iterable[Need]:
        """The fields of a task's record that it scores against."""
        return ()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def score(self, text: str, record: Record) -> float:
        """What `text` is worth: 1 for right, 0 for wrong, some scorers give shares.

        RewardError (RewardTimeoutError after the timeout) when it cannot be scored; JobCodeError
        when the record lacks the answer.
        """
        raise NotImplementedError


class ExactMatchConfig(Extraction):
    answer: str = "answer"
    """Field of the task; a list there names several right answers."""
    ignore_case: bool = False


class ExactMatch(Scorer):
    """1 where the answer is the task's, letter by letter."""

    Config = ExactMatchConfig

    def __init__(self, config: ExactMatchConfig, path: FieldPath, timeout: float) -> None:
        super().__init__(config, path, timeout)
        self._extractor = Extractor(config, path)
        self._ignore_case = config.ignore_case
        self._answer = Need(config.answer, (*path, "answer"), filled=True)

    def needs(self) -> Iterable[Need]:
        return (self._answer,)

    async def score(self, text: str, record: Record) -> float:
        right = answer_of(record, self._answer)
        found = await self._extractor.find(text, self.timeout)
        if found is None:
            return 0.0
        accepted = [str(one).strip() for one in (right if isinstance(right, list) else [right])]
        if self._ignore_case:
            found, accepted = found.casefold(), [one.casefold() for one in accepted]
        return float(found in accepted)


class MathConfig(Extraction):
    answer: str = "answer"
    """Field of the task that holds the expression, with or without LaTeX."""
    processes: Annotated[int, Field(ge=1, le=64)] = 2


class Math(Scorer):
    """1 where the answer is mathematically the task's (math-verify)."""

    Config = MathConfig

    def __init__(self, config: MathConfig, path: FieldPath, timeout: float) -> None:
        super().__init__(config, path, timeout)
        self._extractor = Extractor(config, path)
        need("math_verify", "math-verify", path)
        self._pool = ScoringPool("math", config.processes)
        self._answer = Need(config.answer, (*path, "answer"), filled=True)

    def needs(self) -> Iterable[Need]:
        return (self._answer,)

    async def start(self) -> None:
        await self._pool.start()

    async def close(self) -> None:
        await self._pool.close()

    async def score(self, text: str, record: Record) -> float:
        right = answer_of(record, self._answer)
        found = await self._extractor.find(text, self.timeout)
        if not found:
            return 0.0
        return await self._pool.score({"text": found, "answer": str(right)}, self.timeout)


GYM_FIELDS = ("question", "answer", "metadata", "gym")
"""What records of `gym://` data hold."""


class GymConfig(Extraction):
    processes: Annotated[int, Field(ge=1, le=64)] = 2


class Gym(Scorer):
    """What the reasoning-gym generator that made the task says; <answer> tags count if there."""

    Config = GymConfig

    def __init__(self, config: GymConfig, path: FieldPath, timeout: float) -> None:
        super().__init__(config, path, timeout)
        self._extractor = Extractor(config, path)
        self._tagged = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
        need("reasoning_gym", "reasoning-gym", path)
        self._pool = ScoringPool("gym", config.processes)
        self._entry = tuple(Need(name, path, filled=True) for name in GYM_FIELDS)

    def needs(self) -> Iterable[Need]:
        return self._entry

    async def start(self) -> None:
        await self._pool.start()

    async def close(self) -> None:
        await self._pool.close()

    async def score(self, text: str, record: Record) -> float:
        entry = {need.field: answer_of(record, need) for need in self._entry}
        generator = entry.pop("gym")
        tagged = self._tagged.findall(text)
        found = await self._extractor.find(tagged[-1] if tagged else text, self.timeout)
        if found is None:
            return 0.0
        asked = {"text": found, "generator": generator, "entry": entry}
        return await self._pool.score(asked, self.timeout)


SCORERS: dict[str, type[Scorer]] = {"exact-match": ExactMatch, "math": Math, "gym": Gym}


def make_scorer(choice: ScorerChoice, path: FieldPath) -> Scorer:
    """The scorer that `choice`, standing at `path`, names; JobCodeError."""
    if choice.name not in SCORERS:
        raise JobCodeError(
            Problem(
                (*path, "name"),
                f"{show(choice.name)} is no scorer",
                one_of(SCORERS),
                nearest(choice.name, SCORERS),
            )
        )
    kind = SCORERS[choice.name]
    config = configured(kind.Config, choice.config, (*path, "config"))
    return kind(config, (*path, "config"), choice.timeout)


def need(module: str, package: str, path: FieldPath) -> None:
    """JobCodeError unless an optional package is installed."""
    if importlib.util.find_spec(module) is None:
        raise JobCodeError(
            Problem(path, f"this scorer needs {package}", "pip install 'flexmarl[tasks]'")
        )


def answer_of(record: Record, need: Need) -> Any:
    """The record's field, there and not null; JobCodeError otherwise."""
    if problem := need.unmet(record):
        raise JobCodeError(problem)
    return record[need.field]
