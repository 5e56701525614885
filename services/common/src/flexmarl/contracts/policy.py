"""A policy of a MARLJob: its model, who samples from it, how it is trained."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from flexmarl.contracts.base import Model, Name, NonNegative, Positive, Seconds
from flexmarl.contracts.sources import DataSpec, ModelSource


class EngineKind(StrEnum):
    TRANSFORMERS = "transformers"
    SCRIPTED = "scripted"
    OPENAI = "openai"


class Algorithm(StrEnum):
    GRPO = "grpo"
    DR_GRPO = "dr-grpo"
    RLOO = "rloo"
    REINFORCE_PP = "reinforce-pp"
    NONE = "none"


class Correction(StrEnum):
    """What the loss does about tokens that older weights sampled."""

    CLIP = "clip"
    """Clips the ratio of training to sampling policy: right when both are nearly the same."""
    TIS = "tis"
    """Truncated importance sampling: that ratio, cut off at a cap, as a constant weight."""
    DECOUPLED = "decoupled"
    """Clips against the policy that the step began with, weighted by that one over the sampling
    policy, cut off at a cap (arXiv 2110.00641, 2505.24298)."""


class DeadGroups(StrEnum):
    """What a group in which a policy has no contrast does to the loss."""

    COUNT = "count"
    """Its tokens count in the denominator: the mean is over all that was sampled."""
    EXCLUDE = "exclude"
    """Its tokens have weight 0 there too."""


class TransformersArgs(Model):
    """A KV-cache loop over Hugging Face modules."""

    max_concurrent_turns: Positive = 512
    threads: Positive = 1


class ScriptedArgs(Model):
    """Deterministic tokens and latencies: tests, fault injection, simulation."""

    tokens_per_second: Annotated[float, Field(gt=0)] | None = None
    """Of one turn; none: as fast as it goes."""
    median_tokens: Positive = 8
    p99_tokens: Positive = 16
    """Lengths are lognormal with this median and 99th percentile."""


class OpenAIArgs(Model):
    """Any OpenAI-compatible chat completions API."""

    base_url: Annotated[str, Field(pattern=r"^https?://.+")]
    model: str
    api_key_env: str | None = None
    """Name of the environment variable of the worker that holds the key."""
    timeout: Seconds = 60


class EngineSpec(Model):
    kind: EngineKind = EngineKind.TRANSFORMERS
    transformers: TransformersArgs = TransformersArgs()
    scripted: ScriptedArgs = ScriptedArgs()
    openai: OpenAIArgs | None = None


class WarmStart(Model):
    """A short supervised start on prompt and completion pairs, before version 0."""

    data: DataSpec
    agent: Name
    """Whose system prompt the pairs get."""
    prompt: str = "{question}"
    completion: str = "{answer}"
    steps: Positive
    """At most."""
    target_loss: Annotated[float, Field(gt=0)] | None = None
    """Nats per completion token, smoothed over about five steps, below which it stops early: the
    start is then as good with one seed as with another."""
    batch_size: Positive = 64
    lr: Annotated[float, Field(gt=0)] = 3e-3


class TrainingSpec(Model):
    algorithm: Algorithm = Algorithm.GRPO
    """`none`: the policy keeps its weights (a judge, a frozen opponent). `reinforce-pp` whitens
    advantages over the whole step, so no group can be folded before the last one has come."""
    lr: Annotated[float, Field(gt=0)] = 1e-6
    warmup_steps: NonNegative = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    correction: Correction | None = None
    """By default `decoupled` when older tokens are trained (`pipeline.maxStaleness` above 0, or
    `pipeline.replay`), else `clip`."""
    correction_cap: Annotated[float, Field(ge=1)] = 2.0
    """Largest weight of a token under `tis` and `decoupled`."""
    dead_groups: DeadGroups = DeadGroups.COUNT
    max_logprob_gap: Annotated[float, Field(gt=0)] = 0.2
    """Mean |training - sampling| log-prob per token above which the job stops; only tokens that the
    trained version itself sampled are compared."""
    simulated_tokens_per_second: Annotated[float, Field(gt=0)] | None = None
    """Training waits until it is no faster than this: simulation, like the scripted engine."""
    warm_start: WarmStart | None = None


class PolicySpec(Model):
    """One set of weights."""

    name: Name
    model: ModelSource | None = None
    """Required unless the engine is `openai`."""
    tokenizer: str | None = None
    """`bytes://` or the URI of a model; by default the model's own, `bytes://` for `random://`."""
    engine: EngineSpec = EngineSpec()
    training: TrainingSpec = TrainingSpec()
    pools: Annotated[list[Name], Field(max_length=16)] = []
    """Whose engines and training slots it shares with the others that name them; none: engines of
    its own, which `roles` count, and any slot."""

    @property
    def trained(self) -> bool:
        return self.training.algorithm is not Algorithm.NONE

    @property
    def external(self) -> bool:
        return self.engine.kind is EngineKind.OPENAI
