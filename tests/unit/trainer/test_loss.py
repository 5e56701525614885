"""Losses and log-probs of tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.trainer.loss import kl_k1, kl_k2, kl_k3, policy_loss, token_logprobs

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_kl_reference_values() -> None:
    logprobs, reference = tensor(-1, -2, -0.1), tensor(-1.5, -1, -0.1)
    assert kl_k1(logprobs, reference).tolist() == pytest.approx([0.5, -1, 0])
    assert kl_k2(logprobs, reference).tolist() == pytest.approx([0.125, 0.5, 0])
    assert kl_k3(logprobs, reference).tolist() == pytest.approx([0.1065, 0.7183, 0], abs=5e-5)


def test_clipped_loss_reference_value() -> None:
    terms = policy_loss(tensor(-0.5, -1.5, -1), tensor(-1, -1, -1), tensor(1, 1, 1), **CLIP)
    assert terms.loss.mean().item() == pytest.approx(-0.9622, abs=5e-5)
    assert terms.clipped.tolist() == [True, False, False]


def test_dual_clip_reference_value() -> None:
    terms = policy_loss(tensor(2), tensor(0), tensor(-1), **CLIP, dual_clip=3.0)
    assert terms.loss.item() == pytest.approx(3.0)
    assert terms.clipped.tolist() == [True]


@given(
    st.lists(
        st.tuples(st.floats(-8, -0.01), st.floats(-8, -0.01), st.floats(-3, 3)),
        min_size=1,
        max_size=20,
    ),
    st.data(),
)
@settings(deadline=None)
def test_loss_and_gradient_are_sums_over_tokens(
    rows: list[tuple[float, float, float]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(rows)))

    def run(part: list[tuple[float, float, float]]) -> tuple[float, list[float]]:
        new = torch.tensor([row[0] for row in part], dtype=torch.float64, requires_grad=True)
        old = tensor(*(row[1] for row in part))
        loss = policy_loss(new, old, tensor(*(row[2] for row in part)), **CLIP, dual_clip=3.0).loss
        loss.sum().backward()
        assert new.grad is not None
        return loss.sum().item(), new.grad.tolist()

    whole, gradient = run(rows)
    first, second = run(rows[:cut]), run(rows[cut:])
    assert first[0] + second[0] == pytest.approx(whole, rel=1e-12, abs=1e-12)
    assert first[1] + second[1] == pytest.approx(gradient, rel=1e-12)


def test_logprobs_are_those_at_the_sampling_temperature() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 7, dtype=torch.float64)
    temperatures = torch.tensor([0.6, 1.0, 2.0])
    targets = torch.tensor([1, 2, 3])
    logprobs, entropy = token_logprobs(logits, lambda x: x, targets, temperatures, 7)
    for row, (temperature, target) in enumerate(zip(temperatures, targets, strict=True)):
        weights = (logits[row] / temperature.to(torch.float64)).exp()
        probabilities = weights / weights.sum()
        assert logprobs[row].item() == pytest.approx(probabilities[target].log().item())
        spread = -(probabilities * probabilities.log()).sum()
        assert entropy[row].item() == pytest.approx(spread.item())


def test_chunks_change_neither_values_nor_gradients() -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 31, bias=False, dtype=torch.float64)
    targets, temperatures = torch.randint(31, (13,)), torch.rand(13) + 0.5

    def run(chunk: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        torch.manual_seed(1)
        hidden = torch.randn(13, 8, dtype=torch.float64, requires_grad=True)
        head.zero_grad()
        logprobs, entropy = token_logprobs(
            hidden, head, targets, temperatures, 31, chunk_elements=chunk
        )
        logprobs.sum().backward()
        assert hidden.grad is not None
        return logprobs.detach(), entropy, hidden.grad

    for whole, chunked in zip(run(1 << 20), run(31 * 4), strict=True):
        torch.testing.assert_close(whole, chunked, rtol=1e-12, atol=1e-12)


def test_a_long_sequence_keeps_no_logits_for_the_backward_pass() -> None:
    """[S, V] of logits and softmax is what runs out of memory: only the chunk's inputs stay."""
    hidden = torch.randn(512, 4, requires_grad=True)
    head = torch.nn.Linear(4, 1000, bias=False)
    saved: list[int] = []

    def keep(kept: torch.Tensor) -> torch.Tensor:
        saved.append(kept.numel())
        return kept

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
        token_logprobs(
            hidden,
            head,
            torch.zeros(512, dtype=torch.int64),
            torch.ones(512),
            1000,
            chunk_elements=16_000,
        )
    assert max(saved, default=0) < 16_000
