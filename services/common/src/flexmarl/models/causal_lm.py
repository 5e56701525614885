"""Build and save the Hugging Face model of a policy; alike in trainer and engine."""

from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from flexmarl.contracts.policy import PolicySpec
from flexmarl.contracts.sources import Dtype
from flexmarl.models.sources import RandomSpec, resolve
from flexmarl.models.tokenizer import Tokenizer, load_tokenizer
from flexmarl.runtime.errors import InvalidJobError

disable_progress_bar()  # processes log lines, not bars

DTYPES = {
    Dtype.FLOAT32: torch.float32,
    Dtype.BFLOAT16: torch.bfloat16,
    Dtype.FLOAT64: torch.float64,
}


def build_model(
    policy: PolicySpec, base_dir: Path, seed: int, tokenizer: Tokenizer | None = None
) -> PreTrainedModel:
    """The policy's model in eval mode, in its dtype, on the CPU, with sdpa attention.

    Random weights are a pure function of `seed` and the sizes. InvalidJobError when the model
    cannot be found, read, or has fewer embeddings than the tokenizer has tokens.
    """
    if policy.model is None:
        raise InvalidJobError(f"policy {policy.name}: no model")
    tokenizer = tokenizer or load_tokenizer(policy, base_dir)
    source = resolve(policy.model.uri, base_dir)
    dtype = DTYPES[policy.model.dtype]
    if isinstance(source, RandomSpec):
        model = _random(source, tokenizer, dtype, seed)
    else:
        model = _load(policy.model.uri, source, dtype)
    rows = cast(torch.nn.Embedding, model.get_input_embeddings()).num_embeddings
    if rows < tokenizer.vocab_size:
        raise InvalidJobError(
            f"policy {policy.name}: the tokenizer has {tokenizer.vocab_size} tokens, "
            f"the model {rows} embeddings"
        )
    model.train(False)
    return model


def save_model(model: PreTrainedModel, tokenizer: Tokenizer, directory: Path) -> None:
    """Write config.json, generation_config.json, model.safetensors and the tokenizer's files."""
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory, max_shard_size="1TB")
    tokenizer.save(directory)


def _random(
    spec: RandomSpec, tokenizer: Tokenizer, dtype: torch.dtype, seed: int
) -> PreTrainedModel:
    eos = list(tokenizer.eos_ids)
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=spec.hidden,
        intermediate_size=spec.intermediate,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        max_position_embeddings=spec.context,
        initializer_range=0.02,
        tie_word_embeddings=spec.tie,
        bos_token_id=None,
        eos_token_id=eos[0] if len(eos) == 1 else eos,
        pad_token_id=tokenizer.pad_id,
    )
    build = cast(Any, LlamaForCausalLM)._from_config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = build(config, dtype=dtype, attn_implementation="sdpa")
    model.generation_config = GenerationConfig.from_model_config(config)
    return model


def _load(uri: str, folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    try:
        model, loading = cast(Any, AutoModelForCausalLM).from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="sdpa",
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise InvalidJobError(f"{uri}: cannot load a model from {folder}: {error}") from error
    if missing := sorted(loading["missing_keys"]):  # transformers would make them up, at random
        raise InvalidJobError(
            f"{uri}: the model in {folder} lacks {len(missing)} tensors, {missing[0]} among them"
        )
    return cast(PreTrainedModel, model)
