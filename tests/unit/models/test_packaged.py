"""Conversion of a GGUF file, once, whoever asks."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")
from flexmarl.models.bytes_tokenizer import byte_letters  # noqa: E402
from flexmarl.models.gguf_conversion import convert  # noqa: E402
from flexmarl.models.tokenizer import FileTokenizer  # noqa: E402

HIDDEN, HEADS, KV_HEADS, LAYERS, INNER = 32, 4, 2, 2, 48


def write_gguf(path: Path) -> None:
    """A tiny Llama as llama.cpp's converter would write it, with random float32 weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5e4)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<|end|>", "<|user|>", *byte_letters().values(), "ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * 257)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    random = np.random.default_rng(0)
    size = HIDDEN // HEADS
    shapes = {"token_embd": (len(tokens), HIDDEN), "output_norm": (HIDDEN,)}
    for n in range(LAYERS):
        shapes |= {
            f"blk.{n}.attn_norm": (HIDDEN,),
            f"blk.{n}.attn_q": (HIDDEN, HIDDEN),
            f"blk.{n}.attn_k": (KV_HEADS * size, HIDDEN),
            f"blk.{n}.attn_v": (KV_HEADS * size, HIDDEN),
            f"blk.{n}.attn_output": (HIDDEN, HIDDEN),
            f"blk.{n}.ffn_norm": (HIDDEN,),
            f"blk.{n}.ffn_gate": (INNER, HIDDEN),
            f"blk.{n}.ffn_up": (INNER, HIDDEN),
            f"blk.{n}.ffn_down": (HIDDEN, INNER),
        }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_converted_model_has_the_files_tokens_and_weights(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    write_gguf(tmp_path / "tiny.gguf")
    out = tmp_path / "out"
    out.mkdir()
    convert(tmp_path / "tiny.gguf", out)
    tokenizer = FileTokenizer(out, "x")
    assert tokenizer.encode("ab1b<|end|>")[0] == 258
    assert len(tokenizer.encode("12")) == 2
    assert tokenizer.decode(tokenizer.encode("é ab<|end|>")) == "é ab"
    assert tokenizer.eos_ids == (0,)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.config.rope_parameters["rope_theta"] == 5e4
    assert model.config.rms_norm_eps == 1e-5
    assert model.lm_head.weight is model.model.embed_tokens.weight
    reader = gguf.GGUFReader(tmp_path / "tiny.gguf")
    stored = {t.name: t.data for t in reader.tensors}
    down = torch.from_numpy(stored["blk.1.ffn_down.weight"].copy()).bfloat16()
    assert torch.equal(model.model.layers[1].mlp.down_proj.weight, down)
    # llama.cpp puts the two halves of each head's rotary dimensions side by side
    query = model.model.layers[0].self_attn.q_proj.weight.reshape(HEADS, 2, -1, HIDDEN)
    paired = torch.from_numpy(stored["blk.0.attn_q.weight"].copy()).bfloat16()
    assert torch.equal(query.transpose(1, 2).reshape(HIDDEN, HIDDEN), paired)


def test_processes_that_ask_at_once_convert_once(tmp_path: Path) -> None:
    """A package with a model is made up on the spot; each process notes every conversion."""
    site = tmp_path / "site"
    info = site / "carrier-1.0.dist-info"
    info.mkdir(parents=True)
    write_gguf(site / "tiny.gguf")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
    (info / "RECORD").write_text("tiny.gguf,,\n")
    code = (
        "import flexmarl.models.gguf_conversion as c, flexmarl.models.packaged as p\n"
        "real = c.convert\n"
        "def noted(*a):\n    print('converted')\n    real(*a)\n"
        "c.convert = noted\n"
        "print(p.packaged_model('pypi://carrier'))"
    )
    folder = tmp_path / "cache/flexmarl/models/carrier-1.0-1"
    (folder.parent / f".{folder.name}-killed").mkdir(parents=True)
    env = {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=120)[0].split() for process in running]
    assert sum("converted" in words for words in said) == 1
    assert {words[-1] for words in said} == {str(folder)}
    assert (folder / "model.safetensors").is_file()
    assert sorted(path.name for path in folder.parent.iterdir()) == [
        folder.name,
        f"{folder.name}.lock",
    ]
