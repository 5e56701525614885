"""What a job and a model's files tell of its size, against the state that a trainer makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.trainer.conftest import job

from flexmarl.contracts.policy import Correction
from flexmarl.contracts.sizes import PARAMETER_BYTES, VOCABULARY, random_parameters
from flexmarl.models.bytes_tokenizer import BytesTokenizer
from flexmarl.models.causal_lm import build_model, save_model
from flexmarl.preflight.checks import parameters_in
from flexmarl.tensors.torch_bridge import layout_of
from flexmarl.trainer.policy import TrainedPolicy

SIZES = "&kv_heads=1&intermediate=40"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("more", ["", SIZES, "&tie=false"])
def test_the_state_is_as_large_as_the_job_says(tmp_path: Path, dtype: str, more: str) -> None:
    spec = job(dtype=dtype).spec.policy("solver")
    assert spec.model is not None
    model = spec.model.model_copy(update={"uri": spec.model.uri + more})
    spec = spec.model_copy(update={"model": model})
    tokenizer = BytesTokenizer()
    assert tokenizer.vocab_size == VOCABULARY
    made = build_model(spec, tmp_path, 0, tokenizer)
    parameters = sum(one.numel() for one in made.parameters())
    assert random_parameters(spec) == parameters
    save_model(made, tokenizer, tmp_path / "saved")
    assert parameters_in(tmp_path / "saved") == parameters
    state = layout_of(TrainedPolicy(spec, made, tokenizer, Correction.CLIP).state())
    estimate = parameters * PARAMETER_BYTES[model.dtype]
    # Beside them a state has what does not grow: padding, counters, the random state.
    assert estimate <= state.nbytes <= estimate + 16_000
