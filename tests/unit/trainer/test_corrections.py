"""What the loss does about older weights: hand-computed values, gradients, invariances."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.contracts.pipeline import PipelineSpec
from flexmarl.contracts.policy import Correction, TrainingSpec
from flexmarl.trainer.loss import PolicyLoss, corrected_loss, correction_of

Row = tuple[float, float, float, float]
"""pi, prox, mu (log-probs) and advantage of a token."""


def loss_of(
    correction: Correction, rows: list[Row], *, cap: float = 2.0
) -> tuple[PolicyLoss, list[float]]:
    """The terms of these tokens, and the gradient of their sum in pi."""
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)]
    pi = columns[0].requires_grad_()
    terms = corrected_loss(
        correction, pi, *columns[1:], clip_low=0.2, clip_high=0.28, dual_clip=3.0, cap=cap
    )
    terms.loss.sum().backward()
    assert pi.grad is not None
    return terms, pi.grad.tolist()


def row(pi: float, prox: float, mu: float, advantage: float) -> Row:
    """Of probabilities."""
    return math.log(pi), math.log(prox), math.log(mu), advantage


def test_truncated_importance_sampling_by_hand() -> None:
    rows = [
        row(0.3, 0.9, 0.2, 1.0),  # weight 1.5
        row(0.8, 0.9, 0.2, -2.0),  # 4, cut to 2
        row(0.1, 0.9, 0.2, 4.0),  # 0.5
    ]
    terms, gradient = loss_of(Correction.TIS, rows)
    assert terms.weight.tolist() == pytest.approx([1.5, 2, 0.5])
    assert terms.ratio.tolist() == pytest.approx([1.5, 4, 0.5])
    assert terms.loss.tolist() == pytest.approx([-1.5, 4, -2])
    # -advantage * weight * d log pi: the weight is a constant.
    assert gradient == pytest.approx([-1.5, 4, -2])
    assert terms.capped.tolist() == [False, True, False]
    assert not terms.clipped.any()


def test_the_decoupled_objective_by_hand() -> None:
    rows = [
        row(0.22, 0.2, 0.4, 1.0),  # ratio 1.1 to prox, weight 0.5: -0.55
        row(0.30, 0.2, 0.4, 1.0),  # ratio 1.5 clipped at 1.28: -0.64, no gradient
        row(0.10, 0.2, 0.05, -1.0),  # ratio 0.5 clipped at 0.8, weight 4 cut to 2: 1.6
        row(0.22, 0.2, 0.1, -1.0),  # ratio 1.1, weight 2: 2.2
        row(0.9, 0.2, 0.2, -1.0),  # ratio 4.5: dual clip at 3
    ]
    terms, gradient = loss_of(Correction.DECOUPLED, rows)
    assert terms.weight.tolist() == pytest.approx([0.5, 0.5, 2, 2, 1])
    assert terms.loss.tolist() == pytest.approx([-0.55, -0.64, 1.6, 2.2, 3])
    assert terms.clipped.tolist() == [False, True, True, False, True]
    assert terms.capped.tolist() == [False, False, True, False, False]
    assert terms.ratio.tolist() == pytest.approx([0.55, 0.75, 2, 2.2, 4.5])  # to mu, as reported
    assert gradient == pytest.approx([-0.55, 0, 0, 2.2, 0])


TOKENS = st.tuples(
    st.floats(-6, -0.01), st.floats(-6, -0.01), st.floats(-6, -0.01), st.floats(-3, 3)
)
ROWS = st.lists(TOKENS, min_size=1, max_size=12)
CORRECTIONS = st.sampled_from(list(Correction))


@given(ROWS)
@settings(deadline=None)
def test_with_one_update_the_decoupled_objective_is_truncated_importance_sampling(
    rows: list[Row],
) -> None:
    at_start: list[Row] = [(pi, pi, mu, advantage) for pi, _, mu, advantage in rows]
    tis, decoupled = loss_of(Correction.TIS, at_start), loss_of(Correction.DECOUPLED, at_start)
    assert tis[0].loss.tolist() == pytest.approx(decoupled[0].loss.tolist(), rel=1e-12)
    assert tis[1] == pytest.approx(decoupled[1], rel=1e-12)


@given(ROWS)
@settings(deadline=None)
def test_without_staleness_the_decoupled_objective_is_the_clipped_one(rows: list[Row]) -> None:
    fresh: list[Row] = [(pi, mu, mu, advantage) for pi, _, mu, advantage in rows]
    clip, decoupled = loss_of(Correction.CLIP, fresh), loss_of(Correction.DECOUPLED, fresh)
    assert clip[0].loss.tolist() == decoupled[0].loss.tolist()
    assert clip[1] == decoupled[1]


@given(ROWS, CORRECTIONS, st.randoms(use_true_random=False), st.data())
@settings(deadline=None)
def test_neither_order_nor_split_changes_a_tokens_loss_or_gradient(
    rows: list[Row], correction: Correction, random: object, data: st.DataObject
) -> None:
    terms, gradient = loss_of(correction, rows)
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    cut = data.draw(st.integers(1, len(rows)))
    seen: dict[int, tuple[float, float]] = {}
    for part in (order[:cut], order[cut:]):
        if part:
            alone, slope = loss_of(correction, [rows[at] for at in part])
            seen |= dict(zip(part, zip(alone.loss.tolist(), slope, strict=True), strict=True))
    for at in range(len(rows)):
        assert seen[at] == pytest.approx((terms.loss[at].item(), gradient[at]), rel=1e-12)


@given(ROWS, CORRECTIONS, st.floats(1, 5))
@settings(deadline=None)
def test_no_weight_exceeds_the_cap_and_none_is_differentiated(
    rows: list[Row], correction: Correction, cap: float
) -> None:
    terms, gradient = loss_of(correction, rows, cap=cap)
    assert terms.weight.max() <= cap
    assert not terms.weight.requires_grad
    for at, (pi, prox, _, advantage) in enumerate(rows):
        ratio = {
            Correction.CLIP: terms.ratio[at].item(),
            Correction.TIS: 1.0,
            Correction.DECOUPLED: math.exp(pi - prox),
        }[correction]
        expected = 0.0 if terms.clipped[at] else -advantage * terms.weight[at].item() * ratio
        assert gradient[at] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("correction", list(Correction))
def test_gradients_are_those_of_the_function_whose_weights_are_constants(
    correction: Correction,
) -> None:
    torch.manual_seed(0)
    pi = (-torch.rand(20, dtype=torch.float64) * 2 - 0.1).requires_grad_()
    prox, mu = (pi.detach() + torch.randn(20, dtype=torch.float64) * 0.3 for _ in range(2))
    advantages = torch.randn(20, dtype=torch.float64)
    weight = corrected_loss(
        correction, pi, prox, mu, advantages, clip_low=0.2, clip_high=0.28, dual_clip=3.0, cap=2.0
    ).weight

    def reference(pi: torch.Tensor) -> torch.Tensor:
        """The same, written down from the formulas."""
        if correction is Correction.TIS:
            return -(weight * advantages * pi)
        ratio = torch.exp(pi - (mu if correction is Correction.CLIP else prox))
        pessimistic = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
        floor = torch.where(advantages < 0, 3.0 * advantages, -torch.inf)
        return -weight * torch.maximum(pessimistic, floor)

    def own(pi: torch.Tensor) -> torch.Tensor:
        return corrected_loss(
            correction,
            pi,
            prox,
            mu,
            advantages,
            clip_low=0.2,
            clip_high=0.28,
            dual_clip=3.0,
            cap=2.0,
        ).loss

    (found,) = torch.autograd.grad(own(pi).sum(), pi)
    (expected,) = torch.autograd.grad(reference(pi).sum(), pi)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(reference, (pi,))


def test_older_tokens_are_corrected_unless_the_job_says_otherwise() -> None:
    stale, replaying = (
        PipelineSpec(max_staleness=1),
        PipelineSpec.model_validate({"replay": {"share": 0.5}}),
    )
    assert correction_of(TrainingSpec(), PipelineSpec()) is Correction.CLIP
    assert correction_of(TrainingSpec(), stale) is Correction.DECOUPLED
    assert correction_of(TrainingSpec(), replaying) is Correction.DECOUPLED
    assert correction_of(TrainingSpec(correction=Correction.TIS), stale) is Correction.TIS
    assert correction_of(TrainingSpec(correction=Correction.CLIP), stale) is Correction.CLIP
