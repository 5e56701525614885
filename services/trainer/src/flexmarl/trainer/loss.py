"""The clipped policy loss per token, as sums. Pure functions of tensors.

What of GRPO is here: a token-level clipped surrogate with asymmetric bounds (DAPO's clip-higher)
and the dual clip for negative advantages. The ratio is training policy over sampling policy, taken
from the engine's own log-probs, so it also corrects small differences between the two programs.

What is left out: no KL penalty against a reference model (no reference model is loaded; KL is
measured between sampling and training policy only), no entropy bonus, no length normalisation per
sequence, and no constant divisor for `dr-grpo`: every algorithm divides the sum over all trained
tokens of the step once by their number, whatever the split into micro-batches.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint

DUAL_CLIP = 3.0
"""A negative advantage costs at most this many times itself, however large the ratio."""
CHUNK_ELEMENTS = 1 << 24
"""Logits alive at once: 64 MiB in float32."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Per-token terms, all [N]."""

    loss: torch.Tensor
    """Differentiable in the training log-probs."""
    ratio: torch.Tensor
    """Training over sampling probability, detached."""
    clipped: torch.Tensor
    """Bool: the clip is active, the token has no gradient."""


def policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) of each of N tokens.

    With `dual_clip` c (> 1), tokens of negative advantage cost at most c |A|. All inputs are [N].
    """
    ratio = torch.exp(logprobs - old_logprobs)
    plain = -advantages * ratio
    bounded = -advantages * torch.clamp(ratio, 1 - clip_low, 1 + clip_high)
    clipped = bounded > plain
    loss = torch.maximum(plain, bounded)
    if dual_clip is not None:
        ceiling = -advantages * dual_clip
        beyond = (advantages < 0) & (loss > ceiling)
        loss = torch.where(beyond, ceiling, loss)
        clipped = clipped | beyond
    return PolicyLoss(loss, ratio.detach(), clipped)


def kl_k1(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """log p - log q of each token sampled from p: unbiased, of either sign."""
    return logprobs - reference


def kl_k2(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Half the squared difference: small variance, biased."""
    return 0.5 * (logprobs - reference) ** 2


def kl_k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """q/p - 1 - log(q/p) of each token sampled from p: unbiased and never negative."""
    difference = reference - logprobs
    return torch.expm1(difference) - difference


Head = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states [n, H] -> logits [n, V]."""


def token_logprobs(
    hidden: torch.Tensor,
    head: Head,
    targets: torch.Tensor,
    temperatures: torch.Tensor,
    vocabulary: int,
    *,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob and entropy (detached, nats) of N tokens at their sampling temperatures, both [N].

    `hidden` [N, H] are the states that predict `targets` [N] (int64). Logits are divided by
    `temperatures` [N] before the softmax, as the engine did, in float32 or wider. At most
    `chunk_elements` logits exist at once: further chunks are recomputed in the backward pass.
    """
    rows = max(1, chunk_elements // vocabulary)
    if len(targets) <= rows:
        return _chunk(hidden, head, targets, temperatures)
    parts = [
        checkpoint(
            _chunk,
            hidden[at : at + rows],
            head,
            targets[at : at + rows],
            temperatures[at : at + rows],
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for at in range(0, len(targets), rows)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _chunk(
    hidden: torch.Tensor, head: Head, targets: torch.Tensor, temperatures: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden)
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    spread = torch.log_softmax(logits / temperatures.to(logits.dtype)[:, None], dim=-1)
    with torch.no_grad():
        entropy = torch.special.entr(spread.exp()).sum(-1)
    return spread.gather(-1, targets[:, None])[:, 0], entropy
