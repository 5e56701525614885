"""A policy's model behind the backend that serves it."""

from pathlib import Path

import torch

from flexmarl.contracts.policy import PolicySpec
from flexmarl.models.causal_lm import build_model
from flexmarl.models.tokenizer import Tokenizer
from flexmarl.rollout.engines.base import Backend, WeightsAccess
from flexmarl.rollout.engines.invariant import InvariantBackend
from flexmarl.rollout.engines.transformers_engine import TransformersBackend
from flexmarl.runtime.errors import InvalidJobError


def build(
    policy: PolicySpec,
    base_dir: Path,
    tokenizer: Tokenizer,
    seed: int,
    access: WeightsAccess,
    *,
    deterministic: bool = False,
) -> Backend:
    """The policy's model behind a backend; sets the number of torch's threads for the process."""
    args = policy.engine.transformers
    if deterministic and args.threads > 1:
        raise InvalidJobError(
            f"policy {policy.name}: engine.transformers.threads is {args.threads}; in a "
            "deterministic job it must be 1: how threads share a sum decides its rounding"
        )
    torch.set_num_threads(args.threads)
    model = build_model(policy, base_dir, seed, tokenizer)
    configured = model.generation_config.eos_token_id if model.generation_config else None
    eos = [configured] if isinstance(configured, int) else configured or []
    kind = InvariantBackend if deterministic else TransformersBackend
    return kind(
        model,
        sorted({*tokenizer.eos_ids, *eos}),
        max_concurrent_turns=args.max_concurrent_turns,
        access=access,
    )
