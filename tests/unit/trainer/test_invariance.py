"""A step's gradient is one sum: neither arrival nor splitting changes it beyond rounding."""

import copy
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.trainer.conftest import gradients, make_examples, make_policy

from flexmarl.contracts.policy import Correction
from flexmarl.contracts.sources import Dtype
from flexmarl.trainer.accumulate import StepOrder, StepTotals
from flexmarl.trainer.batch import Example, Prepared, pad
from flexmarl.trainer.policy import TrainedPolicy

TOLERANCES = {Dtype.FLOAT64: 1e-12, Dtype.FLOAT32: 1e-5, Dtype.BFLOAT16: 2e-2}
"""Relative to the gradient's norm, as `accumulate` states them."""
GROUPS = 6
POLICIES = {dtype: make_policy(dtype) for dtype in TOLERANCES}


def group_of(number: int, seed: int) -> Prepared:
    """A group of random length, real-valued advantages and ages; some teach nothing."""
    random = Random(f"{seed}/{number}")
    live = random.random() < 0.8
    examples = make_examples(random.randint(1, 4), live=live, seed=1000 * seed + number)
    for example in examples:
        example.versions[:] = [random.randint(0, 2) for _ in example.versions]
    return Prepared(tuple(examples), 0)


def run(
    policy: TrainedPolicy, groups: list[Prepared], order: StepOrder, arrivals: list[int]
) -> tuple[torch.Tensor, StepTotals]:
    """The gradient as one vector, and the step's totals."""
    totals = StepTotals()
    policy.begin()
    for index in arrivals:
        order.add(index, groups[index])
        while chosen := order.take():
            sums = policy.fold([example for group in chosen for example in group.examples])
            totals.add(chosen, sums)
    assert order.ready
    found = gradients(policy)
    flat = [found.get(n, torch.zeros_like(m)).flatten() for n, m in policy.masters.items()]
    return torch.cat(flat), totals


def order_of(micro_batch: int, *, deterministic: bool, overlap: bool, tokens: int) -> StepOrder:
    return StepOrder(
        GROUPS,
        0,
        1,
        micro_batch,
        deterministic=deterministic,
        overlap=overlap,
        tokens=tokens,
    )


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@given(
    st.integers(0, 1 << 20),
    st.sampled_from(list(Correction)),
    st.integers(1, 4),
    st.integers(1, 80),
    st.tuples(st.booleans(), st.booleans()),
    st.permutations(range(GROUPS)),
)
@settings(deadline=None, max_examples=40)
def test_arrival_and_micro_batches_leave_the_gradient_alone(  # noqa: PLR0917
    dtype: Dtype,
    seed: int,
    correction: Correction,
    micro_batch: int,
    tokens: int,
    modes: tuple[bool, bool],
    arrivals: list[int],
) -> None:
    groups = [group_of(number, seed) for number in range(GROUPS)]
    policy, tolerance = POLICIES[dtype], TOLERANCES[dtype]
    policy.correction, policy.version = correction, 2
    deterministic, overlap = modes
    synchronous = order_of(GROUPS, deterministic=True, overlap=False, tokens=1)
    expected, whole = run(policy, groups, synchronous, list(range(GROUPS)))
    order = order_of(micro_batch, deterministic=deterministic, overlap=overlap, tokens=tokens)
    found, totals = run(policy, groups, order, arrivals)
    difference = torch.linalg.vector_norm(found - expected)
    assert difference <= tolerance * torch.linalg.vector_norm(expected)
    if dtype is Dtype.FLOAT64:
        known = whole.metrics()
        for name, value in totals.metrics().items():
            if name != "folds":
                assert value == pytest.approx(known[name], rel=tolerance, abs=tolerance), name


@given(st.permutations(range(GROUPS)), st.booleans(), st.sampled_from(list(Correction)))
@settings(deadline=None, max_examples=15)
def test_deterministic_folds_are_bit_equal_whatever_arrives_when(
    arrivals: list[int], overlap: bool, correction: Correction
) -> None:
    groups = [group_of(number, 7) for number in range(GROUPS)]
    policy = POLICIES[Dtype.FLOAT32]
    policy.correction, policy.version = correction, 2
    runs = [
        run(
            policy,
            groups,
            order_of(2, deterministic=True, overlap=overlapping, tokens=1),
            arriving,
        )
        for arriving, overlapping in ((list(range(GROUPS)), False), (arrivals, overlap))
    ]
    assert torch.equal(runs[0][0], runs[1][0])
    assert runs[0][1].metrics() == runs[1][1].metrics()


def test_logprobs_at_given_weights_are_those_of_a_model_that_holds_them() -> None:
    policy, batch = make_policy(), pad(make_examples(5))
    start = {name: tensor.detach().clone() for name, tensor in policy.model.named_parameters()}
    expected = policy.forward(batch)[0].detach()
    policy.begin()
    policy.update(policy.fold(make_examples(5)).tokens)
    moved = policy.forward(batch)[0].detach()
    assert not torch.allclose(moved, expected)
    torch.testing.assert_close(policy.forward.at(start, batch), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(policy.forward(batch)[0], moved)  # nothing of it stays
    assert all(parameter.requires_grad for parameter in policy.model.parameters())


def clone(policy: TrainedPolicy) -> dict[str, torch.Tensor]:
    return {n: tensor.detach().clone() for n, tensor in policy.model.named_parameters()}


def measured(policy: TrainedPolicy, examples: list[Example]) -> torch.Tensor:
    return policy.forward(pad(examples))[0].detach()


def test_the_second_update_is_corrected_against_the_weights_that_the_step_began_with() -> None:
    policy = make_policy(correction=Correction.DECOUPLED, lr=0.05)
    policy.version = 1  # all examples are of version 0
    examples = make_examples(3)
    start, frozen = clone(policy), copy.deepcopy(policy.forward)
    policy.begin()
    policy.update(policy.fold(make_examples(4, seed=5)).tokens)
    sums = policy.fold(examples, start)

    batch = pad(sorted(examples, key=lambda example: len(example.token_ids)))
    prox, pi = frozen(batch)[0].detach(), policy.forward(batch)[0].detach()
    mu, advantages = torch.from_numpy(batch.old_logprobs), torch.from_numpy(batch.advantages)
    weight = torch.exp(prox - mu).clamp(max=2.0)
    ratio = torch.exp(pi - prox)
    assert not torch.allclose(ratio, torch.ones_like(ratio))
    pessimistic = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
    floor = torch.where(advantages < 0, 3 * advantages, -torch.inf)
    expected = -(weight * torch.maximum(pessimistic, floor)).sum().item()
    assert sums.loss == pytest.approx(expected, rel=1e-9)
    assert sums.weight == pytest.approx(weight.sum().item(), rel=1e-9)


@pytest.mark.parametrize("correction", list(Correction))
def test_log_probs_are_compared_only_where_both_are_of_the_same_weights(
    correction: Correction,
) -> None:
    policy = make_policy(correction=correction, lr=0.05)
    policy.version = 3
    fresh, stale = make_examples(2), make_examples(2, seed=1)
    cut = make_examples(1, seed=2)
    for examples, version, comparable in ((fresh, 3, True), (stale, 1, True), (cut, 3, False)):
        for example in examples:
            example.versions[:] = version
            example.comparable[:] = comparable
    own = sum(len(example.positions) for example in fresh)
    old = sum(len(example.positions) for example in stale)
    policy.begin()
    sums = policy.fold([*fresh, *stale, *cut])
    assert sums.compared == own
    assert (sums.stale, sums.staleness, sums.staleness_max) == (old, 2 * old, 2)
    start = clone(policy)
    policy.update(sums.tokens)
    again = policy.fold(fresh, start)
    # What the step began with is known again where the correction needs it.
    assert again.compared == (own if correction is Correction.DECOUPLED else 0)
    if again.compared:
        assert again.gap == pytest.approx(policy_gap(start, fresh), rel=1e-9)


def policy_gap(start: dict[str, torch.Tensor], examples: list[Example]) -> float:
    policy = make_policy()
    batch = pad(examples)
    return (
        (policy.forward.at(start, batch) - torch.from_numpy(batch.old_logprobs)).abs().sum().item()
    )


def test_truncated_sampling_begins_the_step_with_ratio_one_and_is_clipped_after_it() -> None:
    policy = make_policy(lr=0.3)
    (example,) = make_examples(1)
    cut = replace(example, comparable=np.zeros_like(example.comparable))
    policy.begin()
    assert policy.fold([cut]).kl == 0
    start = clone(policy)
    policy.update(1)
    moved = policy.fold([cut], start)
    assert moved.kl > 0
    assert moved.clipped > 0
    assert moved.compared == 0
