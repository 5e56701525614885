"""Models: seeded, sized, saved so that transformers loads the same."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from flexmarl.contracts.policy import PolicySpec
from flexmarl.models.bytes_tokenizer import BytesTokenizer
from flexmarl.models.causal_lm import build_model, save_model
from flexmarl.runtime.errors import InvalidJobError

URI = "random://llama?hidden=32&layers=2&heads=4&kv_heads=2&intermediate=64&context=64"


def policy(uri: str = URI, dtype: str = "float32", **fields: object) -> PolicySpec:
    return PolicySpec.model_validate({"name": "a", "model": {"uri": uri, "dtype": dtype}, **fields})


def test_random_weights_are_a_function_of_the_seed() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first, again, other = (build_model(policy(), Path(), seed) for seed in (5, 5, 6))
    assert torch.equal(before, torch.random.get_rng_state())
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert not first.training


def test_sizes_are_those_of_the_uri_and_the_tokenizer() -> None:
    model = build_model(policy(), Path(), 0)
    config = model.config
    assert (config.vocab_size, config.max_position_embeddings) == (261, 64)
    assert (config.eos_token_id, config.pad_token_id) == (256, 260)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight[:-1].std().item() == pytest.approx(0.02, rel=0.1)
    untied = build_model(policy(URI + "&tie=false"), Path(), 0)
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_saved_model_is_what_transformers_loads(dtype: str, tmp_path: Path) -> None:
    model = build_model(policy(dtype=dtype), Path(), 3)
    save_model(model, BytesTokenizer(), tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.dtype == model.dtype
    ids = torch.tensor([[1, 2, 3, 256]])
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    again = build_model(policy("file://out", dtype), tmp_path, 0)
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_the_saved_tokenizer_is_what_transformers_loads(tmp_path: Path) -> None:
    BytesTokenizer().save(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "user", "content": "é <|end|>"}]
    text = BytesTokenizer().render(chat, True)
    assert loaded.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) == text
    ids = loaded.encode(text)
    assert ids == BytesTokenizer().encode(text)
    assert loaded.decode(ids, skip_special_tokens=True) == BytesTokenizer().decode(ids)
    assert (loaded.eos_token_id, loaded.pad_token_id) == (256, 260)


def test_a_tokenizer_that_knows_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    model = build_model(policy(), Path(), 0)
    model.resize_token_embeddings(100)
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = 1
    save_model(model, BytesTokenizer(), tmp_path)
    with pytest.raises(InvalidJobError, match="261 tokens, the model 100 embeddings"):
        build_model(policy(f"file://{tmp_path}"), Path(), 0)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    BytesTokenizer().save(tmp_path)
    with pytest.raises(InvalidJobError, match="cannot load a model"):
        build_model(policy(f"file://{tmp_path}"), Path(), 0)


@pytest.mark.parametrize(
    ("damage", "said"), [("cut", "cannot load a model"), ("lacking", "lacks 1 tensors, model.norm")]
)
def test_a_damaged_model_is_refused_not_filled_up_at_random(
    tmp_path: Path, damage: str, said: str
) -> None:
    save_model(build_model(policy(), Path(), 0), BytesTokenizer(), tmp_path)
    file = tmp_path / "model.safetensors"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-8])
    else:
        weights = load_file(file)
        del weights["model.norm.weight"]
        save_file(weights, file, {"format": "pt"})
    with pytest.raises(InvalidJobError, match=said):
        build_model(policy(f"file://{tmp_path}"), Path(), 0)
