"""Sampling: hand-computed cases, statistics, and independence of the rest of the batch."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.rollout.engines.sampling import SamplingRows, draw, processed_logprobs, uniforms

PLAIN = SamplingRows(None, None, None, None)
LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0]])


def rows(
    temperature: float | None = None, top_k: int | None = None, top_p: float | None = None
) -> SamplingRows:
    return SamplingRows(
        None,
        None if temperature is None else torch.tensor([temperature]),
        None if top_k is None else torch.tensor([top_k]),
        None if top_p is None else torch.tensor([top_p], dtype=torch.float64),
    )


def test_temperature_divides_the_logits() -> None:
    expected = torch.log_softmax(LOGITS / 0.5, -1)
    torch.testing.assert_close(processed_logprobs(LOGITS, rows(0.5)), expected)


def test_top_k_keeps_k_and_renormalises() -> None:
    got = processed_logprobs(LOGITS, rows(top_k=2))[0]
    torch.testing.assert_close(got[:2], torch.log_softmax(torch.tensor([2.0, 1.0]), -1))
    assert got[2:].tolist() == [-torch.inf, -torch.inf]


def test_equal_logits_at_the_kth_place_all_stay() -> None:
    got = processed_logprobs(torch.tensor([[1.0, 0.0, 0.0, -1.0]]), rows(top_k=2))
    assert got.isfinite().tolist() == [[True, True, True, False]]


def test_top_p_keeps_the_token_that_crosses_p() -> None:
    """Probabilities .644 .237 .087 .032."""
    for p, kept in [(0.5, 1), (0.64, 1), (0.65, 2), (0.88, 2), (0.9, 3), (1e-6, 1)]:
        got = processed_logprobs(LOGITS, rows(top_p=p))
        assert got.isfinite().sum().item() == kept, p


def test_top_p_counts_what_top_k_left() -> None:
    """Of .731 .269: top-p .7 keeps one."""
    assert processed_logprobs(LOGITS, rows(top_k=2, top_p=0.7)).isfinite().sum().item() == 1


def test_what_is_off_changes_nothing_in_a_mixed_batch() -> None:
    logits = torch.randn(3, 50)
    mixed = SamplingRows(
        None,
        torch.tensor([1.0, 0.3, 1.0]),
        torch.tensor([50, 4, 50]),
        torch.tensor([torch.inf, 0.5, torch.inf], dtype=torch.float64),
    )
    got = processed_logprobs(logits, mixed)
    assert torch.equal(got[::2], processed_logprobs(logits[::2], PLAIN))


def test_drawn_tokens_follow_the_distribution() -> None:
    count = 200_000
    uniform = uniforms(np.arange(count, dtype=np.uint64), np.zeros(count, np.int64))
    logprobs = processed_logprobs(LOGITS, PLAIN)
    tokens, chosen = draw(logprobs.expand(count, -1), torch.from_numpy(uniform))
    shares = tokens.bincount(minlength=4) / count
    torch.testing.assert_close(shares, logprobs[0].exp(), atol=0.005, rtol=0)
    assert torch.equal(chosen, logprobs[0][tokens])


def test_uniform_numbers_are_even_over_seeds_and_positions() -> None:
    for seeds, positions in [
        (np.arange(100_000, dtype=np.uint64), np.zeros(100_000, np.int64)),
        (np.full(100_000, 7, np.uint64), np.arange(100_000)),
    ]:
        values = uniforms(seeds, positions)
        counts = np.histogram(values, 20, (0, 1))[0]
        assert abs(counts - 5000).max() < 350  # five standard deviations
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02


def test_a_token_without_probability_is_never_drawn() -> None:
    logprobs = processed_logprobs(torch.tensor([[0.0, 1.0, 0.5, 0.0, 0.0]]), rows(top_k=2))
    for value in (0.0, 0.3, 1 - 2**-52):
        token, chosen = draw(logprobs, torch.tensor([value], dtype=torch.float64))
        assert token.item() in (1, 2)
        assert chosen.isfinite().all()


def test_greedy_rows_take_the_likeliest_token() -> None:
    greedy = torch.tensor([True, False])
    uniform = torch.tensor([0.99, 0.99], dtype=torch.float64)
    tokens, _ = draw(processed_logprobs(LOGITS.repeat(2, 1), PLAIN), uniform, greedy)
    assert tokens.tolist() == [0, 3]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=8), st.integers(0, 2**31))
def test_a_uniform_number_depends_on_seed_and_position_alone(seeds: list[int], at: int) -> None:
    together = uniforms(np.array(seeds, np.uint64), np.full(len(seeds), at))
    alone = [uniforms(np.array([seed], np.uint64), np.array([at]))[0] for seed in seeds]
    assert together.tolist() == alone
    assert (together >= 0).all()
    assert (together < 1).all()
