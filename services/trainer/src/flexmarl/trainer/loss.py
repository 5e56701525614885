"""The policy loss per token, as sums, and its corrections for older weights. Pure functions.

What of GRPO is here: a token-level clipped surrogate with asymmetric bounds (DAPO's clip-higher)
and the dual clip for negative advantages. Three policies matter to a token: the one that sampled it
(mu, known by the engine's own log-probs, so that small differences between the two programs are
corrected too), the one that the step began with (prox) and the one that is trained (pi).

- `clip`: the surrogate of pi/mu. Right when mu is prox, or nearly.
- `tis`: truncated importance sampling, min(pi/mu, cap) as a constant weight on the gradient of
  log pi, without clipping (Yao et al. 2025, "Your efficient RL framework secretly brings you
  off-policy RL training"; Ionides 2008).
- `decoupled`: the surrogate of pi/prox, weighted by min(prox/mu, cap), a constant (arXiv
  2110.00641, 2505.24298). With one update per step prox is pi, and this is `tis`.

What is left out: no KL penalty against a reference model (no reference model is loaded; KL is
measured between sampling and training policy only), no entropy bonus, no length normalisation per
sequence, and no constant divisor for `dr-grpo`: every algorithm divides the sum over the trained
tokens of an update once by their number, whatever the split into micro-batches. Weights are per
token, never products over a sequence, and tokens beyond the cap are not masked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from flexmarl.contracts.pipeline import PipelineSpec
from flexmarl.contracts.policy import Correction, TrainingSpec

DUAL_CLIP = 3.0
"""A negative advantage costs at most this many times itself, however large the ratio."""
CHUNK_ELEMENTS = 1 << 25
"""Logits alive at once: 128 MiB in float32."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Per-token terms, all [N]."""

    loss: torch.Tensor
    """Differentiable in the training log-probs."""
    ratio: torch.Tensor
    """Training over sampling probability, detached."""
    clipped: torch.Tensor
    """Bool: the clip is active, the token has no gradient."""
    weight: torch.Tensor
    """What the correction multiplied the token's loss by, detached."""
    capped: torch.Tensor
    """Bool: the weight was cut off."""


def correction_of(training: TrainingSpec, pipeline: PipelineSpec) -> Correction:
    """The one that the job names, else what the age of its tokens asks for."""
    if training.correction is not None:
        return training.correction
    older = pipeline.max_staleness > 0 or pipeline.replay is not None
    return Correction.DECOUPLED if older else Correction.CLIP


def corrected_loss(
    correction: Correction,
    logprobs: torch.Tensor,
    prox_logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    cap: float,
) -> PolicyLoss:
    """The loss of N tokens under `correction`; only `logprobs` (pi) are differentiated.

    `prox_logprobs` are those of the weights that the step began with, `old_logprobs` those of the
    sampling policy. All inputs are [N].
    """
    clipped = partial(
        policy_loss, logprobs, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    if correction is Correction.CLIP:
        return clipped(old_logprobs, advantages)
    current = logprobs.detach()
    ratio = torch.exp(current - old_logprobs)
    if correction is Correction.TIS:
        weight = ratio.clamp(max=cap)
        # exp(x - x) is 1 and has the gradient of log pi: losses of all corrections have one scale.
        loss = -advantages * weight * torch.exp(logprobs - current)
        return PolicyLoss(loss, ratio, torch.zeros_like(ratio > cap), weight, ratio > cap)
    behind = torch.exp(prox_logprobs - old_logprobs)
    weight = behind.clamp(max=cap)
    terms = clipped(prox_logprobs, advantages)
    return PolicyLoss(weight * terms.loss, ratio, terms.clipped, weight, behind > cap)


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
    ratio = ratio.detach()
    return PolicyLoss(loss, ratio, clipped, torch.ones_like(ratio), torch.zeros_like(clipped))


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
    if not bool((temperatures == 1).all()):  # a pass over all logits, forward and backward
        logits = logits / temperatures.to(logits.dtype)[:, None]
    spread = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        # p log p is 0 where p is; a row that is NaN itself has a log-prob that says so.
        entropy = -spread.exp().mul_(spread).nan_to_num_(0.0).sum(-1)
    return spread.gather(-1, targets[:, None])[:, 0], entropy
