"""Runs a model over a padded batch: log-probs and entropy of its trained tokens, nothing else.

Logits are made only where a token is trained: the hidden states are gathered first. No attention
mask is passed: padding stands on the right, where causal attention cannot see it.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from flexmarl.trainer.batch import Batch
from flexmarl.trainer.loss import Head, token_logprobs

ACTIVATION_BYTES = 2 << 30
"""What the forward pass of one batch may keep for its backward pass, roughly."""
MAX_BATCH_TOKENS = 4096
"""Beyond this a batch of a small model falls out of the processor's caches and gets slower."""


class Forward:
    """`model` as a function of a batch."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._head, self._body = _split(model)
        self.vocabulary = len(cast(torch.Tensor, model.get_input_embeddings().weight))
        self.batch_tokens = _batch_tokens(model)
        """Padded tokens of one batch that fit the memory bound."""

    def __call__(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropy [N] of the batch's trained tokens."""
        device = self._model.device
        inputs = torch.from_numpy(batch.input_ids).to(device)
        flat = torch.from_numpy(batch.flat).to(device)
        targets = torch.from_numpy(batch.targets).to(device)
        temperatures = torch.from_numpy(batch.temperatures).to(device)
        if self._body is None:
            states = self._model(input_ids=inputs, use_cache=False).logits
        else:
            states = self._body(input_ids=inputs, use_cache=False).last_hidden_state
        picked = states.flatten(0, 1).index_select(0, flat)
        return token_logprobs(picked, self._head, targets, temperatures, self.vocabulary)

    @torch.no_grad()
    def at(self, weights: Mapping[str, torch.Tensor], batch: Batch) -> torch.Tensor:
        """Log-probs [N] that the model would give with `weights`, by its own names for them."""
        device = self._model.device
        swapped = {f"model.{name}": tensor.to(device) for name, tensor in weights.items()}
        logprobs: torch.Tensor = torch.func.functional_call(_Whole(self), swapped, (batch,))[0]
        return logprobs


class _Whole(torch.nn.Module):
    """Body and head as one module, whose tensors can be swapped for a call."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.model, self._call = forward._model, forward

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self._call(batch)


def _split(model: PreTrainedModel) -> tuple[Head, Any]:
    """(head, body) with head(body(ids)) == logits; (identity, None) where a model does more.

    Some architectures scale or cap their logits after the head; one small forward pass shows it.
    """
    head = cast(Any, model).get_output_embeddings()
    body = getattr(model, model.base_model_prefix, None)
    if head is None or body is None:
        return _identity, None
    probe = torch.arange(4, device=model.device)[None]
    with torch.no_grad():
        whole = cast(Any, model)(input_ids=probe, use_cache=False).logits
        states = getattr(body(input_ids=probe, use_cache=False), "last_hidden_state", None)
        if states is None or not torch.allclose(head(states), whole, rtol=1e-3, atol=1e-5):
            return _identity, None
    return head, body


def _identity(logits: torch.Tensor) -> torch.Tensor:
    return logits


def _batch_tokens(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    layers, hidden = int(config.num_hidden_layers), int(config.hidden_size)
    # About 34 values per hidden unit, layer and token stay for the backward pass.
    per_token = 34 * layers * hidden * model.dtype.itemsize
    return max(1, min(MAX_BATCH_TOKENS, ACTIVATION_BYTES // per_token))
