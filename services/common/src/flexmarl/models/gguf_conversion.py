"""Convert a Llama in one GGUF file to Hugging Face's layout, with numpy alone (needs `gguf`).

Weights are de-quantised and stored as bfloat16. The tokenizer is rebuilt from the file's own
vocabulary and merges, so that its pre-tokenisation is the original one.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from flexmarl.runtime.errors import InvalidJobError

CONTROL, USER_DEFINED = 3, 4  # token types of GGUF
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
DIGITS = pre_tokenizers.Digits(individual_digits=True)
PRE = {"smollm": [DIGITS], "gpt-2": []}


def convert(source: Path, folder: Path) -> None:
    """Write the model and the tokenizer of `source` into the existing `folder`."""
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama" or fields["tokenizer.ggml.model"] != "gpt2":
        raise InvalidJobError(f"{source}: only a Llama with a byte-level vocabulary is read")
    config = _config(fields, tied=all(t.name != "output.weight" for t in reader.tensors))
    _write_json(folder / "config.json", config)
    special_ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", special_ids)
    weights = {name: _bfloat16(array) for name, array in _weights(reader, config)}
    _write_safetensors(folder / "model.safetensors", weights)
    _tokenizer(fields).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields, config))
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"])


def _config(fields: dict[str, Any], tied: bool) -> dict[str, Any]:
    eps = fields["llama.attention.layer_norm_rms_epsilon"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        "rope_parameters": {"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        "rms_norm_eps": float(f"{eps:.6g}"),  # GGUF keeps a float32
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
        "dtype": "bfloat16",
    }


def _weights(
    reader: gguf.GGUFReader, config: dict[str, Any]
) -> Iterator[tuple[str, "np.ndarray[Any, np.dtype[np.float32]]"]]:
    """Hugging Face's name and the float32 array of every tensor."""
    for tensor in reader.tensors:
        stem = tensor.name.removesuffix(".weight")
        array = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if not stem.startswith("blk."):
            yield f"{OUTER[stem]}.weight", array
            continue
        _, layer, kind = stem.split(".")
        if kind == "attn_q":
            array = _unpaired(array, config["num_attention_heads"])
        elif kind == "attn_k":
            array = _unpaired(array, config["num_key_value_heads"])
        yield f"model.layers.{layer}.{LAYER[kind]}.weight", array


def _unpaired(array: Any, heads: int) -> Any:
    """Rows from GGUF's rotary order (pairs side by side) to Hugging Face's (two halves)."""
    rows, columns = array.shape
    return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, -1)


def _bfloat16(array: Any) -> Any:
    """The same shape as uint16: the upper halves, rounded to nearest even."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")


def _write_safetensors(path: Path, arrays: dict[str, Any]) -> None:
    """Write bfloat16 bits. The format by hand: numpy has no such type, and safetensors' own
    interface for raw bytes changes between its releases."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": "BF16", "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(array.data)


def _tokenizer(fields: dict[str, Any]) -> Tokenizer:
    kind = fields["tokenizer.ggml.pre"]
    if kind not in PRE:
        raise InvalidJobError(f"GGUF vocabulary with pre-tokenizer {kind!r}: not known")
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    pairs = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: n for n, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*PRE[kind], pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    of_type = {
        kind: [t for t, given in zip(tokens, types, strict=True) if given == kind]
        for kind in (CONTROL, USER_DEFINED)
    }
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in of_type[CONTROL]])
    tokenizer.add_tokens([AddedToken(t, special=False) for t in of_type[USER_DEFINED]])
    return tokenizer


def _tokenizer_config(fields: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    named = {
        f"{kind}_token": tokens[config[f"{kind}_token_id"]]
        for kind in ("bos", "eos", "pad")
        if config[f"{kind}_token_id"] is not None
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
