"""Forward passes over prompts and over the next token of each running turn, by a model's modules.

Works for any causal language model of transformers with full attention and explicit positions.
Nothing derived from weights is kept: an update in place takes effect at the next call.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from flexmarl.rollout.engines.kv_cache import Layer, Window
from flexmarl.runtime.errors import InvalidJobError


class Decoder:
    """Calls the model's own forward."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._base: Any = model.base_model
        taken = inspect.signature(self._base.forward).parameters
        # transformers 5.24 renamed it; older releases know one name, newer ones warn at the other
        self._cache_name = "cache" if "cache" in taken else "past_key_values"
        kind = type(model).__name__
        if "position_ids" not in taken or self._cache_name not in taken:
            raise InvalidJobError(f"{kind} takes no position_ids or no KV cache: not served here")
        odd = {type(layer).__name__ for layer in DynamicCache(config=model.config).layers}
        if odd - {"DynamicLayer"} and not _window_spans_context(model.config):
            raise InvalidJobError(f"{kind} has layers without full attention: not served here")

    def prefill(self, ids: torch.Tensor) -> list[Layer]:
        """Keys and values of prompts [U, L], padded on the right: causality hides the padding."""
        cache = DynamicCache(config=self._model.config)
        positions = torch.arange(ids.shape[1])[None].expand(ids.shape)
        self._base(
            input_ids=ids, position_ids=positions, use_cache=True, **{self._cache_name: cache}
        )
        return [(layer.keys, layer.values) for layer in cache.layers]  # type: ignore[misc, union-attr]

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, kv: Window) -> torch.Tensor:
        """Logits [B, V] after feeding `tokens` [B] at `positions` [B] to the B rows of `kv`.

        Their keys and values are written to `kv`.
        """
        step = Step(positions, kv.columns)
        cache = Cache(layers=[_Slots(step, layer) for layer in kv.layers])
        bias = torch.zeros(step.mask.shape, dtype=self._model.dtype)
        output = self._model(
            input_ids=tokens[:, None],
            position_ids=positions[:, None],
            attention_mask=bias.masked_fill_(~step.mask, -torch.inf),
            use_cache=True,
            **{self._cache_name: cache},
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits


def _window_spans_context(config: Any) -> bool:
    window = getattr(config, "sliding_window", None)
    only = set(getattr(config, "layer_types", None) or ["sliding_attention"])
    full = {"full_attention", "sliding_attention"}
    return only <= full and window is not None and window >= config.max_position_embeddings


class Step:
    """Where the tokens of one decode step go, and what they see."""

    def __init__(self, positions: torch.Tensor, columns: int) -> None:
        self.count = len(positions)
        self.rows = torch.arange(self.count)
        self.positions = positions
        self.columns = columns
        self.mask = (torch.arange(columns) <= positions[:, None])[:, None, None]
        """bool [B, 1, 1, columns]: the row's own tokens, this one included."""

    def write(self, layer: Layer, keys: torch.Tensor, values: torch.Tensor) -> Layer:
        """Put keys and values [B, heads, size] in place; the layer, with all that the step sees."""
        all_keys, all_values = layer
        all_keys[self.rows, :, self.positions] = keys
        all_values[self.rows, :, self.positions] = values
        return layer


class _Slots(CacheLayerMixin):
    """One layer of the KV cache as transformers sees it during one decode step."""

    def __init__(self, step: Step, layer: Layer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of transformers
        self.keys, self.values = layer
        self.is_initialized = True
        self._step = step
        self._layer = layer

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """The buffers are there from the start."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Layer:
        return self._step.write(self._layer, key_states[:, :, 0], value_states[:, :, 0])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._step.columns, 0

    def get_seq_length(self) -> int:
        return self._step.columns - 1

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        """The name of `get_max_length` before transformers 5.20."""
        return -1


def padded(prompts: Sequence[torch.Tensor]) -> torch.Tensor:
    """int64 [U, longest], zeros on the right."""
    return torch.nn.utils.rnn.pad_sequence(list(prompts), batch_first=True)
