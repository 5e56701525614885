"""The decode step of Llama written out: the modules' weights without the modules' wrappers.

For one token per row the calls around the arithmetic cost as much as the arithmetic; a small model
decodes markedly faster this way. Prompts still go through the modules. Weights are looked up at
each call, none is copied or fused, so an update in place takes effect.
"""

from typing import Any, cast

import torch
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.models.llama import LlamaForCausalLM

from flexmarl.rollout.engines.decoding import Decoder, Step
from flexmarl.rollout.engines.kv_cache import Window


def decoder_for(model: PreTrainedModel) -> Decoder:
    """The written-out decoder for a Llama with plain rotary positions, else the general one."""
    if type(model) is LlamaForCausalLM:
        rotary = cast(Any, model.config).rope_parameters["rope_type"]
        if rotary in ("default", "linear", "llama3"):  # tables that do not change with the length
            return LlamaDecoder(model)
    return Decoder(model)


class LlamaDecoder(Decoder):
    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        config = cast(Any, model.config)
        self._llama = cast(Any, model).model
        self._head = cast(Any, model).lm_head
        self._eps = config.rms_norm_eps
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._size = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        # transformers normalises in float32 whatever the weights are; torch's own function does
        # the same arithmetic for float32 only
        self._fused_norm = model.dtype == torch.float32

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, kv: Window) -> torch.Tensor:
        step = Step(positions, kv.columns)
        hidden = functional.embedding(tokens, self._llama.embed_tokens.weight)
        cos, sin = self._rotation(hidden, positions)
        heads, kv_heads, size = self._heads, self._kv_heads, self._size
        count = step.count
        for block, layer in zip(self._llama.layers, kv.layers, strict=True):
            attention, mlp = block.self_attn, block.mlp
            normed = self._norm(block.input_layernorm, hidden)
            queries = _linear(attention.q_proj, normed).view(count, heads, size)
            keys = _linear(attention.k_proj, normed).view(count, kv_heads, size)
            values = _linear(attention.v_proj, normed).view(count, kv_heads, size)
            turned = _rotated(torch.cat((queries, keys), dim=1), cos, sin)
            queries, keys = turned[:, :heads], turned[:, heads:]
            seen_keys, seen_values = step.write(layer, keys, values)
            mixed = functional.scaled_dot_product_attention(
                # the heads that share keys become queries of one attention
                queries.reshape(count, kv_heads, heads // kv_heads, size),
                seen_keys,
                seen_values,
                attn_mask=step.mask,
                scale=attention.scaling,
            )
            hidden = hidden + _linear(attention.o_proj, mixed.reshape(count, heads * size))
            normed = self._norm(block.post_attention_layernorm, hidden)
            gated = mlp.act_fn(_linear(mlp.gate_proj, normed)) * _linear(mlp.up_proj, normed)
            hidden = hidden + _linear(mlp.down_proj, gated)
        return _linear(self._head, self._norm(self._llama.norm, hidden))

    def _norm(self, module: Any, hidden: torch.Tensor) -> torch.Tensor:
        if self._fused_norm:
            return functional.rms_norm(hidden, (hidden.shape[-1],), module.weight, self._eps)
        normed: torch.Tensor = module(hidden)
        return normed

    def _rotation(
        self, hidden: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine [B, 1, size]; the sine of the first half is negated for `_rotated`."""
        cos, sin = self._llama.rotary_emb(hidden, positions[:, None])
        sin[..., : self._size // 2].neg_()
        return cos, sin


def _linear(module: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, module.weight, module.bias)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((x[..., half:], x[..., :half]), dim=-1) * sin
