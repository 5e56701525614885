"""The baselines: the loops that one would write without any service, over the same model."""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache


@torch.no_grad()
def generate(
    model: PreTrainedModel, prompts: torch.Tensor, max_tokens: int, stop: frozenset[int]
) -> tuple[int, float]:
    """Sample a continuation of each prompt (int64 [B, L], equal lengths) with its log-probs.

    One static batch, a KV cache, temperature 1; a row that has ended is carried along until all
    have. Returns sampled tokens (up to each row's end) and seconds.
    """
    began = time.perf_counter()
    # transformers 5.24 renamed it
    taken = inspect.signature(model.forward).parameters
    cache_name = "cache" if "cache" in taken else "past_key_values"
    cache, ids = {cache_name: DynamicCache(config=model.config)}, prompts
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    stops = torch.tensor(sorted(stop))
    sampled = 0
    logprobs = []
    for _ in range(max_tokens):
        logits = model(input_ids=ids, use_cache=True, logits_to_keep=1, **cache)
        distribution = torch.log_softmax(logits.logits[:, -1].float(), -1)
        ids = torch.multinomial(distribution.exp(), 1)
        logprobs.append(distribution.gather(1, ids))
        sampled += int((~ended).sum())
        ended |= torch.isin(ids[:, 0], stops)
        if ended.all():
            break
    torch.cat(logprobs, 1).numpy()
    return sampled, time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class TrainBatch:
    ids: torch.Tensor
    """int64 [B, T], equal lengths."""
    prompt: int
    """Length of each prompt; the rest is trained."""
    logprobs: torch.Tensor
    """float32 [B, T - prompt]: of the behaviour policy."""
    advantages: torch.Tensor
    """float32 [B]"""


def train(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, batch: TrainBatch, rows: int
) -> tuple[int, float]:
    """One clipped policy-gradient step, `rows` sequences at a time. Trained tokens, seconds."""
    began = time.perf_counter()
    count = batch.logprobs.numel()
    for at in range(0, len(batch.ids), rows):
        part = slice(at, at + rows)
        ids, old = batch.ids[part], batch.logprobs[part]
        keep = ids.shape[1] - batch.prompt + 1
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=keep).logits[:, :-1]
        new = torch.log_softmax(logits.float(), -1).gather(2, ids[:, batch.prompt :, None])[..., 0]
        ratio, advantage = (new - old).exp(), batch.advantages[part, None]
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        (-gain.sum() / count).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return count, time.perf_counter() - began
