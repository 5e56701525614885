"""The supervised start of a policy on prompt and completion pairs, before version 0.

Cross-entropy on the completion and its end token only. A pure function of job and seed: the same
job gets the same version 0, bit for bit, on the same machine. Its optimizer is thrown away.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import structlog
import torch

from flexmarl.contracts.job import MARLJobSpec
from flexmarl.contracts.policy import WarmStart
from flexmarl.data.sources import load_records
from flexmarl.models.tokenizer import Tokenizer
from flexmarl.runtime.errors import InvalidJobError, JobFailedError
from flexmarl.runtime.seeds import derive_seed
from flexmarl.trainer.batch import Example
from flexmarl.trainer.policy import TrainedPolicy

log = structlog.get_logger()

BETAS = (0.9, 0.95)
MAX_GRAD_NORM = 1.0
SMOOTHING = 0.8
"""Weight of the earlier steps in the loss that `targetLoss` is held against."""


def warm_start(policy: TrainedPolicy, spec: MARLJobSpec, base_dir: Path) -> None:
    """Train `policy` as its `training.warmStart` says. InvalidJobError: data that do not fit."""
    start = policy.spec.training.warm_start
    if start is None:
        raise ValueError("no warm start is asked for")
    began, field = time.perf_counter(), _field(spec, policy.spec.name)
    pairs = encode_pairs(
        load_records(start.data, base_dir, spec.seed, field=f"{field}.data"),
        start,
        policy.tokenizer,
        system_prompt=next(a.system_prompt for a in spec.agents if a.name == start.agent),
        field=field,
    )
    _check_lengths(pairs, policy, field)
    optimizer = torch.optim.AdamW(
        policy.masters.values(), lr=start.lr, betas=BETAS, weight_decay=0.0, fused=True
    )
    smoothed = None
    seed = start.data.seed
    if seed is None:
        seed = derive_seed(spec.seed, "warm-start", policy.spec.name)
    order = Random(seed) if start.data.shuffle else None
    for step, chosen in enumerate(batches(len(pairs), start.batch_size, start.steps, order)):
        loss = _step(policy, optimizer, [pairs[index] for index in chosen])
        if not np.isfinite(loss):
            raise JobFailedError(
                f"policy {policy.spec.name}: the warm start's loss is {loss} in step {step}; "
                f"try a lower training.warmStart.lr than {start.lr}"
            )
        smoothed = loss if smoothed is None else SMOOTHING * smoothed + (1 - SMOOTHING) * loss
        if start.target_loss is not None and smoothed <= start.target_loss:
            break
    policy.begin()
    log.info(
        "warm start done",
        policy=policy.spec.name,
        steps=step + 1,
        pairs=len(pairs),
        loss=round(smoothed or 0.0, 4),
        seconds=round(time.perf_counter() - began, 2),
    )


def encode_pairs(
    records: Sequence[Mapping[str, Any]],
    start: WarmStart,
    tokenizer: Tokenizer,
    *,
    system_prompt: str | None,
    field: str,
) -> list[Example]:
    """Each record as the agent would see and answer it; trained are the completion and its end.

    InvalidJobError: a template names what a record lacks, or a completion is empty.
    """
    pairs = []
    system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    for number, record in enumerate(records):
        prompt = _filled(start.prompt, record, f"{field}.prompt", number)
        completion = _filled(start.completion, record, f"{field}.completion", number)
        if not completion:
            raise InvalidJobError(f"{field}.completion: record {number} gives an empty completion")
        messages = [*system, {"role": "user", "content": prompt}]
        prompt_ids = tokenizer.encode(tokenizer.render(messages, add_generation_prompt=True))
        answer_ids = [*tokenizer.encode(completion), tokenizer.eos_ids[0]]
        pairs.append(_pair(f"record {number}", prompt_ids, answer_ids))
    return pairs


def batches(size: int, batch: int, steps: int, order: Random | None) -> list[list[int]]:
    """Indexes of each step: whole epochs chained, each shuffled anew where `order` is given."""
    chain: list[int] = []
    while len(chain) < batch * steps:
        epoch = list(range(size))
        if order is not None:
            order.shuffle(epoch)
        chain += epoch
    return [chain[at : at + batch] for at in range(0, batch * steps, batch)]


def _step(policy: TrainedPolicy, optimizer: torch.optim.Optimizer, pairs: list[Example]) -> float:
    """One optimizer step on the mean over all completion tokens; returns that mean."""
    tokens = sum(len(pair.positions) for pair in pairs)
    total = 0.0
    for batch in policy.batches(pairs):
        logprobs, _ = policy.forward(batch)
        loss = -logprobs.sum() / tokens
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(policy.masters.values(), MAX_GRAD_NORM, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    policy.publish_masters()
    return total


def _pair(name: str, prompt: list[int], answer: list[int]) -> Example:
    count = len(answer)
    return Example(
        id=name,
        token_ids=np.array(prompt + answer, np.int32),
        positions=np.arange(len(prompt), len(prompt) + count),
        old_logprobs=np.zeros(count, np.float32),
        advantages=np.ones(count),
        temperatures=np.ones(count, np.float32),
        comparable=np.zeros(count, np.bool_),
        versions=np.zeros(count, np.int64),
    )


def _filled(template: str, record: Mapping[str, Any], field: str, number: int) -> str:
    try:
        return template.format_map(record)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise InvalidJobError(
            f"{field}: {template!r} does not fit record {number}, which has "
            f"{', '.join(sorted(record))}: {error!r}"
        ) from None


def _check_lengths(pairs: Sequence[Example], policy: TrainedPolicy, field: str) -> None:
    limit = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    longest = max(pairs, key=lambda pair: len(pair.token_ids))
    if limit is not None and len(longest.token_ids) > limit:
        raise InvalidJobError(
            f"{field}.data: {longest.id} has {len(longest.token_ids)} tokens, the model {limit}"
        )


def _field(spec: MARLJobSpec, policy: str) -> str:
    number = [entry.name for entry in spec.policies].index(policy)
    return f"spec.policies[{number}].training.warmStart"
