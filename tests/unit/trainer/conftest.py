"""A tiny policy and examples for it, for tests that need torch but no service."""

from pathlib import Path

import numpy as np
import torch

from flexmarl.contracts.policy import Correction, PolicySpec, TrainingSpec
from flexmarl.contracts.sources import Dtype, ModelSource
from flexmarl.models.causal_lm import build_model
from flexmarl.models.tokenizer import load_tokenizer
from flexmarl.trainer.batch import Example
from flexmarl.trainer.policy import TrainedPolicy


def make_policy(
    dtype: Dtype = Dtype.FLOAT64, correction: Correction = Correction.CLIP, **training: object
) -> TrainedPolicy:
    spec = PolicySpec(
        name="solver",
        model=ModelSource(uri="random://llama?hidden=16&layers=2&heads=2", dtype=dtype),
        training=TrainingSpec.model_validate({"lr": 1e-2, **training}),
    )
    tokenizer = load_tokenizer(spec, Path())
    return TrainedPolicy(spec, build_model(spec, Path(), 3, tokenizer), tokenizer, correction)


def make_examples(count: int = 9, *, live: bool = True, seed: int = 0) -> list[Example]:
    random = np.random.default_rng(seed)
    examples = []
    for number in range(count):
        length = int(random.integers(3, 20))
        start = int(random.integers(1, length - 1))
        trained = length - start
        advantages = random.normal(size=trained) if live else np.zeros(trained)
        examples.append(
            Example(
                id=f"1/0/0/{number}/solver/0",
                token_ids=random.integers(0, 255, length).astype(np.int32),
                positions=np.arange(start, length),
                old_logprobs=np.full(trained, -5.5, np.float32),
                advantages=advantages,
                temperatures=np.full(trained, random.choice([0.7, 1.0]), np.float32),
                comparable=np.ones(trained, np.bool_),
                versions=np.zeros(trained, np.int64),
            )
        )
    return examples


def gradients(policy: TrainedPolicy) -> dict[str, torch.Tensor]:
    return {n: m.grad.clone() for n, m in policy.masters.items() if m.grad is not None}


def assert_same_gradient(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    scale = max(gradient.abs().max().item() for gradient in left.values())
    for name, gradient in left.items():
        torch.testing.assert_close(gradient, right[name], rtol=1e-12, atol=1e-12 * scale)
