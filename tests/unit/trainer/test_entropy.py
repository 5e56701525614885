"""Entropy beside the log-probs: exact at the borders, and no mask for what is not finite."""

import math

import pytest
import torch

from flexmarl.trainer.loss import token_logprobs


def measured(logits: torch.Tensor, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    rows, vocabulary = logits.shape
    return token_logprobs(
        logits,
        lambda states: states,
        torch.zeros(rows, dtype=torch.int64),
        torch.full((rows,), temperature),
        vocabulary,
    )


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_token_that_cannot_be_sampled_adds_nothing(temperature: float) -> None:
    _, entropy = measured(torch.tensor([[0.0, 0.0, -math.inf], [0.0, -1e30, -1e30]]), temperature)
    assert entropy.tolist() == pytest.approx([math.log(2), 0.0])


def test_a_row_that_is_not_a_number_is_seen_in_its_log_prob() -> None:
    logprobs, _ = measured(torch.tensor([[0.0, math.nan], [0.0, math.inf], [0.0, 0.0]]))
    assert logprobs.isfinite().tolist() == [False, False, True]
