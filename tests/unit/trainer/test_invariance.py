"""A step's gradient is one sum: neither arrival nor splitting changes it beyond rounding."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.trainer.conftest import gradients, make_examples, make_policy

from flexmarl.contracts.policy import Correction
from flexmarl.contracts.sources import Dtype
from flexmarl.tensors.layout import WEIGHTS
from flexmarl.trainer.accumulate import StepOrder, StepTotals
from flexmarl.trainer.batch import Example, Prepared, pad
from flexmarl.trainer.policy import TrainedPolicy

TOLERANCES = {Dtype.FLOAT64: 1e-12, Dtype.FLOAT32: 1e-5, Dtype.BFLOAT16: 2e-2}
"""Relative to the gradient's norm, as `accumulate` states them."""


def clone(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def parameters(policy: TrainedPolicy) -> dict[str, torch.Tensor]:
    return clone(dict(policy.model.named_parameters()))


GROUPS, REPLAYED = 6, 3
POLICIES = {dtype: make_policy(dtype, lr=1e-3) for dtype in TOLERANCES}
STARTS = {dtype: clone(policy.state()) for dtype, policy in POLICIES.items()}
VERSION = 2


def group_of(number: int, seed: int) -> Prepared:
    """A group of random length, real-valued advantages and ages; some teach nothing, some tokens
    are not sampled from the whole distribution."""
    random = Random(f"{seed}/{number}")
    live = random.random() < 0.8
    examples = make_examples(random.randint(1, 4), live=live, seed=1000 * seed + number)
    for example in examples:
        example.versions[:] = [random.randint(0, VERSION) for _ in example.versions]
        example.comparable[:] = [random.random() < 0.8 for _ in example.comparable]
    return Prepared(tuple(examples), 0)


@dataclass(frozen=True)
class Outcome:
    """What a step came to."""

    gradients: tuple[torch.Tensor, ...]
    """Of each update, summed."""
    weights: torch.Tensor
    metrics: dict[str, float]


def run(
    dtype: Dtype, seed: int, order: StepOrder, arrivals: list[int], *, exclude: bool
) -> Outcome:
    """A whole step from the start, as `Step` goes through it."""
    policy = POLICIES[dtype]
    policy.restore(VERSION, STARTS[dtype])
    began_with = {name: STARTS[dtype][WEIGHTS + name] for name in policy.masters}
    totals, part = StepTotals(exclude), StepTotals(exclude)
    seen: list[torch.Tensor] = []

    def work_off(part: StepTotals) -> StepTotals:
        while True:
            if chosen := order.take():
                examples = [example for group in chosen for example in group.examples]
                sums = policy.fold(examples, began_with if policy.updates else None)
                totals.add(chosen, sums)
                part.add(chosen, sums)
            elif order.ready:
                seen.append(flat(gradients(policy), policy))
                if part.live:
                    policy.update(part.denominator)
                order.advance()
                part = StepTotals(exclude)
            else:
                return part

    for number in range(REPLAYED):
        order.add_replayed(number, group_of(GROUPS + number, seed))
    for index in arrivals:
        part = work_off(part)
        order.add(index, group_of(index, seed))
    work_off(part)
    assert order.done
    weights = flat(dict(policy.masters), policy).clone()
    return Outcome(tuple(seen), weights, totals.metrics())


def flat(tensors: Mapping[str, torch.Tensor], policy: TrainedPolicy) -> torch.Tensor:
    """As one vector, 0 where there is none."""
    return torch.cat(
        [tensors.get(n, torch.zeros_like(m)).detach().flatten() for n, m in policy.masters.items()]
    )


def order_of(
    micro_batch: int, *, deterministic: bool, overlap: bool, tokens: int, updates: int = 1
) -> StepOrder:
    return StepOrder(
        GROUPS,
        REPLAYED,
        updates,
        micro_batch,
        deterministic=deterministic,
        overlap=overlap,
        tokens=tokens,
    )


@pytest.mark.parametrize(
    ("dtype", "updates"),
    # What rounds more finely moves weights apart, where an update does so by a gradient's sign.
    [(dtype, 1) for dtype in TOLERANCES] + [(Dtype.FLOAT64, 2), (Dtype.FLOAT64, 3)],
)
@given(
    st.integers(0, 1 << 20),
    st.sampled_from(list(Correction)),
    st.integers(1, 4),
    st.integers(1, 80),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.permutations(range(GROUPS)),
)
@settings(deadline=None, max_examples=25)
def test_arrival_and_micro_batches_leave_the_step_alone(  # noqa: PLR0917
    dtype: Dtype,
    updates: int,
    seed: int,
    correction: Correction,
    micro_batch: int,
    tokens: int,
    modes: tuple[bool, bool, bool],
    arrivals: list[int],
) -> None:
    tolerance, POLICIES[dtype].correction = TOLERANCES[dtype], correction
    deterministic, overlap, exclude = modes
    whole = order_of(GROUPS, deterministic=True, overlap=False, tokens=1, updates=updates)
    expected = run(dtype, seed, whole, list(range(GROUPS)), exclude=exclude)
    order = order_of(
        micro_batch, deterministic=deterministic, overlap=overlap, tokens=tokens, updates=updates
    )
    found = run(dtype, seed, order, arrivals, exclude=exclude)
    for mine, other in zip(found.gradients, expected.gradients, strict=True):
        assert torch.linalg.vector_norm(mine - other) <= tolerance * torch.linalg.vector_norm(other)
    if dtype is Dtype.FLOAT64:
        difference = torch.linalg.vector_norm(found.weights - expected.weights)
        assert difference <= tolerance * torch.linalg.vector_norm(expected.weights)
        for name, value in found.metrics.items():
            if name != "folds":
                known = expected.metrics[name]
                assert value == pytest.approx(known, rel=tolerance, abs=tolerance), name


@given(
    st.permutations(range(GROUPS)),
    st.booleans(),
    st.sampled_from(list(Correction)),
    st.integers(1, 3),
)
@settings(deadline=None, max_examples=15)
def test_deterministic_folds_are_bit_equal_whatever_arrives_when(
    arrivals: list[int], overlap: bool, correction: Correction, updates: int
) -> None:
    POLICIES[Dtype.FLOAT32].correction = correction
    first, second = (
        run(
            Dtype.FLOAT32,
            7,
            order_of(2, deterministic=True, overlap=overlapping, tokens=1, updates=updates),
            arriving,
            exclude=False,
        )
        for arriving, overlapping in ((list(range(GROUPS)), False), (arrivals, overlap))
    )
    assert all(map(torch.equal, first.gradients, second.gradients))
    assert torch.equal(first.weights, second.weights)
    assert first.metrics == second.metrics


def test_logprobs_at_given_weights_are_those_of_a_model_that_holds_them() -> None:
    policy, batch = make_policy(), pad(make_examples(5))
    start = parameters(policy)
    expected = policy.forward(batch)[0].detach()
    policy.begin()
    policy.update(policy.fold(make_examples(5)).tokens)
    moved = policy.forward(batch)[0].detach()
    assert not torch.allclose(moved, expected)
    torch.testing.assert_close(policy.forward.at(start, batch), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(policy.forward(batch)[0], moved)  # nothing of it stays
    assert all(parameter.requires_grad for parameter in policy.model.parameters())


def measured(policy: TrainedPolicy, examples: list[Example]) -> torch.Tensor:
    return policy.forward(pad(examples))[0].detach()


def test_the_second_update_is_corrected_against_the_weights_that_the_step_began_with() -> None:
    policy = make_policy(correction=Correction.DECOUPLED, lr=0.05)
    policy.version = 1  # all examples are of version 0
    examples = make_examples(3)
    start, frozen = parameters(policy), copy.deepcopy(policy.forward)
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
    start = parameters(policy)
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
    start = parameters(policy)
    policy.update(1)
    moved = policy.fold([cut], start)
    assert moved.kl > 0
    assert moved.clipped > 0
    assert moved.compared == 0
