"""What a step of a MARLJob is made of, and how steps overlap; docs/pipeline.md explains it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from flexmarl.contracts.base import Entrypoint, Model, Name, Positive


class BatchSpec(Model):
    tasks_per_step: Positive = 8
    group_size: Annotated[int, Field(ge=2)] = 8
    micro_batch: Positive = 1
    """Groups whose gradient is computed at once: at least; exactly so many when deterministic."""
    updates_per_step: Positive = 1
    """Optimizer steps per version: the step's groups are split into so many equal parts."""


class FilterSpec(Model):
    """Which finished groups are dropped and played again with another task."""

    name: Literal["contrast"] | None = None
    """`contrast`: groups from which no policy can learn, because all rewards agree, are dropped."""
    entrypoint: Entrypoint | None = None
    """`keep(group) -> bool`, one's own."""
    max_refills: Annotated[int, Field(ge=1, le=1000)] = 8
    """Tasks tried for one place in the step; the last one stays, whatever it is."""


class DifficultySpec(Model):
    """Prefers tasks that are about as hard as wanted, by Thompson sampling from what is known of
    each: a Beta posterior of its solve rate."""

    agent: Name | None = None
    """Whose accuracy counts; by default the mean over agents."""
    target: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The solve rate that teaches most."""
    candidates: Annotated[int, Field(ge=2, le=64)] = 4
    """Tasks of which the best is taken. They are the next ones of the data's order: each is a
    candidate once per epoch."""
    discount: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Of older evidence, at each new one: policies change."""


class ReplaySpec(Model):
    """Trains on groups of earlier steps again, beside the step's own."""

    share: Annotated[float, Field(gt=0, le=4)]
    """Replayed groups per group of the step."""
    max_age: Annotated[int, Field(ge=1, le=16)] = 1
    """In steps."""


class OverlongSpec(Model):
    """Soft punishment of turns that come near their `maxTokens` (DAPO, arXiv 2503.14476)."""

    buffer: Positive
    """Tokens below `maxTokens` from which on the reward falls, linearly."""
    penalty: Annotated[float, Field(gt=0)] = 1.0
    """What it has lost at `maxTokens`."""


class PipelineSpec(Model):
    overlap: bool = True
    """Fold groups while others are still being played; off: wait for the whole step first."""
    deterministic: bool = False
    """Fold groups in index order in fixed micro-batches: bit-equal with and without overlap. The
    transformers engine then samples every turn in the same shapes whoever shares the batch, so that
    two runs, killed or not, end with the same weights on machines of one kind; it needs one thread
    and is up to four times slower."""
    max_staleness: Annotated[int, Field(ge=0, le=16)] = 0
    """How many versions older than the one it trains a token may be. 0: none, every step is
    sampled from its own version. Above, groups of as many later steps are played ahead."""
    partial_rollout: bool = False
    """Steps take whichever groups are whole first; unfinished ones go on in a later step, within
    the bound. Needs maxStaleness above 0."""
    filter: FilterSpec | None = None
    difficulty: DifficultySpec | None = None
    replay: ReplaySpec | None = None
    overlong: OverlongSpec | None = None
